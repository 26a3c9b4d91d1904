"""Planning: templates, memory, cost, frontiers, exact search and the schedule simulator."""

from weavejax.planner.api import plan, search
from weavejax.planner.limits import SearchLimits, batch_grid
from weavejax.planner.partition import PartitionBlock, partition_block
from weavejax.planner.policies import policy_names, register_policy
from weavejax.planner.predict import evaluate, simulate
from weavejax.planner.report import InfeasiblePlanError, PolicyError, SearchCounts, SearchReport
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.round_trip_batch import round_trip_times
from weavejax.planner.simulator import Simulation, simulate_schedule

__all__ = [
    "InfeasiblePlanError",
    "PartitionBlock",
    "PolicyError",
    "SearchCounts",
    "SearchLimits",
    "SearchReport",
    "Simulation",
    "batch_grid",
    "evaluate",
    "partition_block",
    "plan",
    "policy_names",
    "register_policy",
    "round_trip_time",
    "round_trip_times",
    "search",
    "simulate",
    "simulate_schedule",
]
