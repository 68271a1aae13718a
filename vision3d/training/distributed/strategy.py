# SPDX-License-Identifier: Apache-2.0
"""Lightning's DDP with communication hooks on every device (its own strategy registers them on CUDA alone)."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.nn.parallel import DistributedDataParallel

from vision3d.errors import ConfigError
from vision3d.training.config import TrainConfig, config_to_dict
from vision3d.training.distributed.agreement import check_agreement
from vision3d.training.distributed.hooks import Communication, create_communication
from vision3d.training.distributed.options import sends_more_than_dense

logger = logging.getLogger(__name__)
FIND_UNUSED = "ddp_find_unused_parameters_true"


class CommunicationStrategy(DDPStrategy):
    """DDP whose gradients go through the hook of a recipe.

    Args:
        config: the recipe. All processes compare theirs at the start.

    Attributes:
        communication: the hook and its counters, once the training has been set up.
    """

    def __init__(self, config: TrainConfig) -> None:
        unused = config.trainer.strategy == FIND_UNUSED or config.elastic.subnets_per_step > 0
        options: dict[str, Any] = {"find_unused_parameters": unused}
        if config.communication.bucket_mb is not None:
            options["bucket_cap_mb"] = config.communication.bucket_mb
        super().__init__(**options)
        self.config = config
        self.communication: Communication | None = None

    def setup_environment(self) -> None:
        """Join the processes and compare their recipes."""
        super().setup_environment()
        check_agreement(config_to_dict(self.config))

    def _register_ddp_hooks(self) -> None:
        """Called by ``configure_ddp``. A test counts the calls of the hook, since this name is Lightning's own."""
        assert isinstance(self.model, DistributedDataParallel)
        options = self.config.communication
        scaler = getattr(self.precision_plugin, "scaler", None)
        parameters = self.model.module.named_parameters()
        self.communication = create_communication(options, parameters, scaler.get_scale if scaler else None)
        self.model.register_comm_hook(self.communication.state, self.communication.hook)
        if sends_more_than_dense(options, self.world_size) and self.global_rank == 0:
            logger.warning(
                "communication.density %s with %d processes sends more bytes than no hook at all: lower it",
                *(options.density, self.world_size),
            )
        if options.sparse and self.config.optimizer.name != "sgd" and self.global_rank == 0:
            logger.warning(
                "communication.hook: %s with %s: error feedback is proved for SGD; watch the validation error",
                *(options.hook, self.config.optimizer.name),
            )

    def teardown(self) -> None:
        """End the thread of the hook with everything else."""
        if self.communication is not None and self.communication.sparse is not None:
            self.communication.sparse.close()
        super().teardown()


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2: parameters, gradients and the optimiser's state are sharded over all processes; whole checkpoints.

    Args:
        config: the recipe. All processes compare theirs at the start.
    """

    def __init__(self, config: TrainConfig) -> None:
        world = config.trainer.devices * config.trainer.nodes
        super().__init__(data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.config = config

    def setup_environment(self) -> None:
        """Join the processes and compare their recipes."""
        super().setup_environment()
        check_agreement(config_to_dict(self.config))


def create_strategy(config: TrainConfig) -> Any:
    """What Lightning's trainer takes as the strategy of a recipe.

    Raises:
        ConfigError: a strategy that does not go with the rest of the recipe.
    """
    settings = config.trainer
    several = settings.devices * settings.nodes > 1
    if settings.strategy == "fsdp2":
        if not several:
            raise ConfigError("trainer.strategy: fsdp2 shards over processes: set trainer.devices to 2 or more")
        if settings.ema_decay:
            raise ConfigError("trainer.strategy: fsdp2 keeps no moving average: set trainer.ema_decay: 0")
        if config.optimizer.name == "sgd" and not config.optimizer.momentum:
            raise ConfigError(
                "trainer.strategy: fsdp2 cannot resume an optimiser without state: set optimizer.momentum, or take ddp"
            )
        return ShardedStrategy(config)
    if settings.strategy in ("auto", "ddp", FIND_UNUSED) and several:
        return CommunicationStrategy(config)
    if config.communication.hook != "none":
        logger.warning("communication.hook: %s has no effect on a single process", config.communication.hook)
    return settings.strategy
