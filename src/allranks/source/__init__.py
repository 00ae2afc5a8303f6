"""Understands distributed PyTorch programs from their source, never importing or running them.

What other rooms use:

    files.read(path) -> SourceFile          text, lines, tree, error, statement_at(line)
    program.Program(root, files)            modules, resolve(module, name), function_at, callers, entries
    flow.variation(program, path, line)     how the test or iterable at a line may differ between ranks
    flow.communicates(program, path, line)  the collectives a line may make, through calls and hidden ones
    flow.enclosing(program, path, line)     the statements around a line, innermost first

How it works: an entry script is followed abstractly on all ranks of three small worlds at once (`lanes`),
with constants, objects and unknowns as values (`values`) and sets of active lanes that depend on unknown
conditions (`decisions`). What follows it is one object of many layers, each a file, each on the ones above it here:

    state        frames, heap, what is recorded        calls        functions, decorators, generators
    conditions   on which lanes something is true      objects      classes, instances, attributes
    operators    arithmetic, comparisons, and/or       contexts     `with` over objects
    expressions  names, attributes, subscripts         standard     the standard library, builtins
    iteration    loops, comprehensions                 containers   lists, tables, their methods
    assignment   targets                               libraries    torch and its kin, by `lore`
    modules      imports                               machine      runs an entry, or one function
    statements   branches, attempts, leaving
"""
