"""Flight-recorder dumps: read safely into columns, compared across ranks, and judged."""
