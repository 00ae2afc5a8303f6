"""Shows a Report: in the terminal, as JSON, SARIF, GitHub annotations, HTML. It finds nothing itself."""
