"""WeaveJAX: operator-level disaggregated serving of language models in JAX."""

from weavejax.compilation_cache import keep_compiled_programs
from weavejax.default_plans import default_plan, model_ref
from weavejax.engine import Engine, EngineStats
from weavejax.meshes.cluster import Cluster
from weavejax.models.loading import Model, load_model
from weavejax.plan import (
    DeviceGroup,
    ModelRef,
    Parallelism,
    Plan,
    PlanError,
    ProfileRef,
    Template,
    Workload,
)
from weavejax.planner import (
    InfeasiblePlanError,
    PolicyError,
    SearchLimits,
    SearchReport,
    evaluate,
    plan,
    register_policy,
    search,
)
from weavejax.prediction import Prediction
from weavejax.request import Output, SamplingParams, StreamChunk
from weavejax.schedule import Schedule, build_schedule
from weavejax.serve import serve
from weavejax.span import Span, chrome_trace, write_chrome_trace
from weavejax.workbench import Table, compare, sweep
from weavejax.workers.failure import WorkerError
from weavejax.workers.options import WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "DeviceGroup",
    "Engine",
    "EngineStats",
    "InfeasiblePlanError",
    "Model",
    "ModelRef",
    "Output",
    "Parallelism",
    "Plan",
    "PlanError",
    "PolicyError",
    "Prediction",
    "ProfileRef",
    "SamplingParams",
    "Schedule",
    "SearchLimits",
    "SearchReport",
    "Span",
    "StreamChunk",
    "Table",
    "Template",
    "WorkerError",
    "WorkerOptions",
    "Workload",
    "build_schedule",
    "chrome_trace",
    "compare",
    "default_plan",
    "evaluate",
    "keep_compiled_programs",
    "load_model",
    "model_ref",
    "plan",
    "register_policy",
    "search",
    "serve",
    "sweep",
    "write_chrome_trace",
]
