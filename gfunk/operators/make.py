"""From a network's settings to the network."""

from torch import nn

from gfunk.operators.arrival import Arrival, ArrivalConfig
from gfunk.operators.diffusion_net import DiffusionNet, DiffusionNetConfig
from gfunk.operators.fno import FNO, FNOConfig
from gfunk.operators.geo_fno import GeoFNO, GeoFNOConfig
from gfunk.operators.gfunk import GFuNK, GFuNKConfig, PaperGFuNK, PaperGFuNKConfig
from gfunk.operators.gnn import GNN, GNNConfig
from gfunk.operators.modes import ExactModes, ExactModesConfig
from gfunk.operators.transolver import Transolver, TransolverConfig

NetworkConfig = (
    GFuNKConfig
    | ArrivalConfig
    | PaperGFuNKConfig
    | FNOConfig
    | GeoFNOConfig
    | GNNConfig
    | TransolverConfig
    | DiffusionNetConfig
    | ExactModesConfig
)


def make_operator(config: NetworkConfig) -> nn.Module:
    match config:
        case GFuNKConfig():
            return GFuNK(config)
        case ArrivalConfig():
            return Arrival(config)
        case PaperGFuNKConfig():
            return PaperGFuNK(config)
        case FNOConfig():
            return FNO(config)
        case GeoFNOConfig():
            return GeoFNO(config)
        case GNNConfig():
            return GNN(config)
        case TransolverConfig():
            return Transolver(config)
        case DiffusionNetConfig():
            return DiffusionNet(config)
        case ExactModesConfig():
            return ExactModes(config)


def n_parameters(operator: nn.Module) -> int:
    """Learned numbers; a complex one counts once, as in the paper."""
    return sum(parameter.numel() for parameter in operator.parameters())
