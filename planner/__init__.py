"""Planning: templates, memory, cost, frontiers, exact search and the schedule simulator."""
