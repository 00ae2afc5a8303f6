"""Source -> findings: the engine, the rules, and the mending of what is safe to mend."""
