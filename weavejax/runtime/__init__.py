"""The runtime: stages as compiled programs, moves between groups, and what holds them."""
