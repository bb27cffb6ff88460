"""Waves by when they arrive: a front carried across the mesh at one speed, what a network adds to its time, and a profile.

A front is steep, its arrival time is smooth. So the spectral layers correct the time, once for a whole trajectory, and every
output time is read off a learned profile of the time since arrival, place by place.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gfunk.batch import Batch
from gfunk.operators.fronts import front_times, met_on_the_way, slowed_front
from gfunk.operators.gfunk import FilterBank, spectral_features, to_modes, to_nodes


@dataclass(frozen=True, kw_only=True)
class ArrivalConfig:
    """For waves that pass each place once, in tissue at rest ahead of them; first values are those of atrial tissue."""

    width: int = 128
    n_layers: int = 6
    n_modes: int = 200
    filter_width: int = 64
    n_latents: int = 8  # what a place tells its profile beside the time
    profile_width: int = 64
    # A plane wave runs at speed * sqrt(K), and ahead of it u rises from rest as exp(speed^2 t): so u says when it will come.
    speed: float = 1.47
    resting: float = 0.0075
    threshold: float = 45 / 105  # u where the wave has arrived: -40 mV
    # The network's unit of time, in the data's.
    time_scale: float = 10.0
    # Where there are some, the network is told what slows the front on its way to each place: how much it runs along fibres,
    # how coarse the mesh is to it, and its curvature, which is found by diffusing its times for so long.
    ray_times: tuple[float, ...] = ()

    @property
    def n_met(self) -> int:
        return 3 + len(self.ray_times) if self.ray_times else 0

    @property
    def n_carried(self) -> int:
        """What comes to a place along its ray: all that is met, summed, and as it began."""
        return 1 + 2 * self.n_met if self.ray_times else 0


# In the network's unit of time: what the layers can tell apart of the front's times, and the profile of times since arrival.
FRONT_TIMES = (0.1, 0.3, 1.0, 3.0, 10.0)
PROFILE_TIMES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TIMES_AT_ONCE = 16  # more would only take memory


class Arrival(nn.Module):
    """u at any times from the first state alone. It depends on modes through their eigenvalues and on K through lengths."""

    front_times: Tensor

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.config = config
        self.register_buffer("front_times", config.time_scale * torch.tensor(FRONT_TIMES), persistent=False)
        self.lift = nn.Linear(1 + 2 * len(FRONT_TIMES) + config.n_carried + config.n_met, config.width)
        self.layers = nn.ModuleList(MixingLayer(config) for _ in range(config.n_layers))
        self.hidden, self.last = nn.Linear(config.width, 64), nn.Linear(64, 1 + config.n_latents)
        self.profile = Profile(config)
        self.slowed = nn.Linear(1 + config.n_carried, 1, bias=False) if config.ray_times else None
        with torch.no_grad():
            # At first the front runs at its one speed, less its curvature.
            self.last.weight[0] *= 0.01
            self.last.bias[0] = 0
            if self.slowed is not None:
                self.slowed.weight.zero_()

    def first(self, u: Float[Tensor, "batch node channel"], batch: Batch) -> Float[Tensor, "batch node input"]:
        """u, when the front will arrive, how long ago it came, and what it met on its way."""
        ahead, behind = front_times(u, batch, self.config)
        if not self.config.ray_times:
            return torch.cat([u, ahead, behind], dim=-1)
        ahead = slowed_front(u, ahead, batch, self.config)
        return torch.cat([u, ahead, behind, met_on_the_way(u, ahead, batch, self.config)], dim=-1)

    def forward(
        self, first: Float[Tensor, "batch node input"], batch: Batch, times: Float[Tensor, " time"]
    ) -> Float[Tensor, "batch time node channel"]:
        return self.values(first, *self.arrival(first, batch), batch, times)

    def arrival(
        self, first: Float[Tensor, "batch node input"], batch: Batch
    ) -> tuple[Float[Tensor, "batch node 1"], Float[Tensor, "batch node feature"]]:
        """When the wave arrives at each place, negative where it has been, and what the place tells its profile."""
        batch = batch.with_modes(self.config.n_modes)
        n_met, n_carried, scale = self.config.n_met, self.config.n_carried, self.config.time_scale
        u, ahead, behind, carried, there = first.split([1, 1, 1, n_carried, n_met], dim=-1)
        step = torch.ones((), dtype=u.dtype, device=u.device)
        features = spectral_features(batch.eigenvalues * scale, step)
        # Sums grow with the way: the layers are told of their mean. How they began is over soon.
        summed, begun = carried.split([n_met, n_carried - n_met], dim=-1)
        told = [torch.tanh(each / self.front_times) for each in (ahead, behind)]
        told += [summed / (ahead + scale), begun * self.config.speed**2, there]
        field = self.lift(torch.cat([u, *told], dim=-1))
        for layer in self.layers:
            field = layer(field, batch, features)
        with torch.autocast(u.device.type, enabled=False):
            found = self.last(nn.functional.gelu(self.hidden(field.to(u.dtype))))
            late, latents = found.split([1, self.config.n_latents], dim=-1)
            if self.slowed is not None:
                late = late + self.slowed(torch.cat([ahead, carried], dim=-1))
            return ahead - behind + late, latents

    def values(
        self,
        first: Float[Tensor, "batch node input"],
        arrival: Float[Tensor, "batch node 1"],
        latents: Float[Tensor, "batch node feature"],
        batch: Batch,
        times: Float[Tensor, " time"],
    ) -> Float[Tensor, "batch time node channel"]:
        """u at the times, of a wave whose `arrival` is known."""
        found = self.told(first[..., :1], arrival, latents, times)
        return torch.where(batch.is_node[:, None, :, None], found, 0)

    def told(
        self,
        u: Float[Tensor, "batch node channel"],
        arrival: Float[Tensor, "batch node 1"],
        latents: Float[Tensor, "batch node feature"],
        times: Float[Tensor, " time"],
    ) -> Float[Tensor, "batch time node channel"]:
        """The same by what is known of each node alone: its first u, when the wave arrives, what it tells its profile."""
        # Not in half precision: u is steep in the time.
        with torch.autocast(u.device.type, enabled=False):
            place = torch.cat([u, latents], dim=-1)
            parts = [self.profile(some[:, None, None] - arrival[:, None], place) for some in times.split(TIMES_AT_ONCE)]
        return torch.cat(parts, dim=1)


class MixingLayer(nn.Module):
    """x + GELU(mixed filtered x + W x), each filter a smooth function of the eigenvalue."""

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.filters = FilterBank(config.filter_width, config.width)
        self.mix = nn.Linear(config.width, config.width, bias=False)
        self.pointwise = nn.Linear(config.width, config.width)

    def forward(
        self, field: Float[Tensor, "batch node width"], batch: Batch, features: Float[Tensor, "domain mode feature"]
    ) -> Float[Tensor, "batch node width"]:
        # Mixed among modes, of which there are fewer than nodes.
        modes = self.mix(self.filters(features) * to_modes(field, batch))
        return field + nn.functional.gelu(to_nodes(modes, batch) + self.pointwise(field))


class Profile(nn.Module):
    """u a time after the wave's arrival, by what the place tells."""

    times: Tensor

    def __init__(self, config: ArrivalConfig):
        super().__init__()
        self.register_buffer("times", config.time_scale * torch.tensor(PROFILE_TIMES), persistent=False)
        width = config.profile_width
        self.of_time, self.of_place = nn.Linear(2 * len(PROFILE_TIMES), width), nn.Linear(1 + config.n_latents, width)
        self.hidden, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(
        self, since: Float[Tensor, "batch time node 1"], place: Float[Tensor, "batch node feature"]
    ) -> Float[Tensor, "batch time node 1"]:
        scaled = since / self.times
        steps_and_bumps = torch.cat([torch.tanh(scaled), 1 / (1 + scaled.square())], dim=-1)
        field = nn.functional.gelu(self.of_time(steps_and_bumps) + self.of_place(place)[:, None])
        return self.last(nn.functional.gelu(self.hidden(field)))
