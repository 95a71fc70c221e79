"""Everything needed to write your own method, stream or network, in one place; see docs/extending.md."""

from afaf.bounds import (
    Count as Count,
    CountOrZero as CountOrZero,
    NotNegative as NotNegative,
    Percent as Percent,
    Portion as Portion,
    Positive as Positive,
    Within as Within,
)
from afaf.costing.footprint import Footprint as Footprint
from afaf.errors import ConfigError as ConfigError
from afaf.methods.afaf import AFAF as AFAF, AFAFOptions as AFAFOptions
from afaf.methods.base import Method as Method, Predictor as Predictor, TaskContext as TaskContext, row_mask as row_mask
from afaf.methods.dense import DenseMethod as DenseMethod, DenseOptions as DenseOptions
from afaf.methods.penalty import PenaltyOptions as PenaltyOptions
from afaf.methods.regularised import PenaltyMethod as PenaltyMethod
from afaf.methods.spacenet import SpaceNet as SpaceNet, SpaceNetOptions as SpaceNetOptions
from afaf.methods.strength import StrengthMethod as StrengthMethod, StrengthOptions as StrengthOptions
from afaf.network.forward import Parameters as Parameters
from afaf.network.ledger import Allocation as Allocation, ClassAllocation as ClassAllocation, Ledger as Ledger
from afaf.network.net import Network as Network
from afaf.network.ops import Norm as Norm
from afaf.network.spec import Layer as Layer, NetworkSpec as NetworkSpec
from afaf.network.zoo import NETWORKS as NETWORKS
from afaf.runs.events import (
    EpochEnded as EpochEnded,
    Event as Event,
    RunResumed as RunResumed,
    RunStarted as RunStarted,
    TaskEnded as TaskEnded,
    TaskStarted as TaskStarted,
    Warned as Warned,
)
from afaf.runs.results import Results as Results
from afaf.streams.tasks import Outline as Outline, Preparation as Preparation, Split as Split, Stream as Stream, Task as Task
from afaf.subnets.allocate import (
    Request as Request,
    Subnetwork as Subnetwork,
    allocate_free as allocate_free,
    allocate_reusing as allocate_reusing,
)
from afaf.subnets.rewire import Importance as Importance
from afaf.training.eager import EagerEngine as EagerEngine
from afaf.training.learner import Learner as Learner
from afaf.training.losses import (
    CrossEntropy as CrossEntropy,
    LossOver as LossOver,
    distillation as distillation,
    outputs_in_loss as outputs_in_loss,
    total as total,
)
from afaf.training.named import (
    keep_tensors as keep_tensors,
    kept_tensors as kept_tensors,
    protected_parameters as protected_parameters,
    state_dict as state_dict,
)
from afaf.training.optimisers import SGD as SGD, AdamW as AdamW
from afaf.training.plan import LearningPlan as LearningPlan, Loss as Loss, Step as Step
from afaf.training.quadratic import QuadraticPenalty as QuadraticPenalty
from afaf.training.report import EpochReport as EpochReport
from afaf.training.schedules import (
    Constant as Constant,
    Cosine as Cosine,
    OneCycle as OneCycle,
    ReduceOnPlateau as ReduceOnPlateau,
    StepDecay as StepDecay,
)
from afaf.training.settings import LearnSettings as LearnSettings, Settings as Settings, SparseSettings as SparseSettings
from afaf.training.task_data import RngScope as RngScope, TaskData as TaskData
