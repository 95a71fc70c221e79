"""Everything a method, a stream or a network of one's own is made of, in one place; see docs/extending.md."""

from afaf.costing.footprint import Footprint
from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import Actions, Method, Predictor, TaskContext, rows_of
from afaf.methods.dense import DenseMethod, DenseOptions
from afaf.methods.penalty import PenaltyOptions
from afaf.methods.regularised import PenaltyMethod
from afaf.methods.spacenet import SpaceNet, SpaceNetOptions
from afaf.methods.strength import StrengthMethod, StrengthOptions
from afaf.network.forward import Parameters
from afaf.network.ledger import Allocation, ClassAllocation, Ledger
from afaf.network.net import Network
from afaf.network.ops import Norm
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import NETWORKS
from afaf.runs.events import EpochEnded, Event, RunResumed, RunStarted, TaskEnded, TaskStarted, Warned
from afaf.runs.results import Results
from afaf.streams.tasks import Outline, Preparation, Split, Stream, Task
from afaf.subnets.allocate import Request, Subnetwork, allocate_free, allocate_reusing
from afaf.subnets.rewire import Importance
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.losses import CrossEntropy, LossOver, distillation, outputs_in_loss, total
from afaf.training.named import everything, find, keep, protected
from afaf.training.optimisers import SGD, AdamW
from afaf.training.plan import LearningPlan, Loss, Step
from afaf.training.quadratic import QuadraticPenalty
from afaf.training.report import EpochReport
from afaf.training.schedules import Constant, Cosine, OneCycle, ReduceOnPlateau, StepDecay
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from afaf.training.task_data import RngScope, TaskData

__all__ = [
    "AFAF",
    "NETWORKS",
    "SGD",
    "AFAFOptions",
    "Actions",
    "AdamW",
    "Allocation",
    "ClassAllocation",
    "Constant",
    "Cosine",
    "CrossEntropy",
    "DenseMethod",
    "DenseOptions",
    "EagerEngine",
    "EpochEnded",
    "EpochReport",
    "Event",
    "Footprint",
    "Importance",
    "Layer",
    "LearnSettings",
    "Learner",
    "LearningPlan",
    "Ledger",
    "Loss",
    "LossOver",
    "Method",
    "Network",
    "NetworkSpec",
    "Norm",
    "OneCycle",
    "Outline",
    "Parameters",
    "PenaltyMethod",
    "PenaltyOptions",
    "Predictor",
    "Preparation",
    "QuadraticPenalty",
    "ReduceOnPlateau",
    "Request",
    "Results",
    "RngScope",
    "RunResumed",
    "RunStarted",
    "Settings",
    "SpaceNet",
    "SpaceNetOptions",
    "SparseSettings",
    "Split",
    "Step",
    "StepDecay",
    "Stream",
    "StrengthMethod",
    "StrengthOptions",
    "Subnetwork",
    "Task",
    "TaskContext",
    "TaskData",
    "TaskEnded",
    "TaskStarted",
    "Warned",
    "allocate_free",
    "allocate_reusing",
    "distillation",
    "everything",
    "find",
    "keep",
    "outputs_in_loss",
    "protected",
    "rows_of",
    "total",
]
