"""From a network's settings to the network."""

from torch import nn

from gfunk.operators.fno import FNO, FNOConfig
from gfunk.operators.gfunk import GFuNK, GFuNKConfig, PaperGFuNK, PaperGFuNKConfig
from gfunk.operators.gnn import GNN, GNNConfig
from gfunk.operators.modes import ExactModes, ExactModesConfig

NetworkConfig = GFuNKConfig | PaperGFuNKConfig | FNOConfig | GNNConfig | ExactModesConfig


def make_operator(config: NetworkConfig) -> nn.Module:
    match config:
        case GFuNKConfig():
            return GFuNK(config)
        case PaperGFuNKConfig():
            return PaperGFuNK(config)
        case FNOConfig():
            return FNO(config)
        case GNNConfig():
            return GNN(config)
        case ExactModesConfig():
            return ExactModes(config)


def n_parameters(operator: nn.Module) -> int:
    """Learned numbers; a complex one counts once, as in the paper."""
    return sum(parameter.numel() for parameter in operator.parameters())
