"""Writers of logs and metrics: TensorBoard, Weights & Biases, MLflow and the like."""

from __future__ import annotations

from .effect import Effect

_WRITER = Effect("make", "writer", ("log_dir",), make="writer")

NAMES: dict[str, Effect] = {
    "torch.utils.tensorboard.SummaryWriter": _WRITER,
    "torch.utils.tensorboard.writer.SummaryWriter": _WRITER,
    "tensorboardX.SummaryWriter": _WRITER,
    "wandb.init": Effect("make", "tracker", ("project",), make="tracker", operation="wandb.init"),
    "wandb.log": Effect("value", "track"),
    "mlflow.start_run": Effect("make", "tracker", make="tracker", operation="mlflow.start_run"),
    "mlflow.log_metric": Effect("value", "track"),
    "mlflow.log_metrics": Effect("value", "track"),
    "aim.Run": Effect("make", "tracker", make="tracker", operation="aim.Run"),
    "comet_ml.Experiment": Effect("make", "tracker", make="tracker", operation="comet_ml.Experiment"),
    "neptune.init_run": Effect("make", "tracker", make="tracker", operation="neptune.init_run"),
    "swanlab.init": Effect("make", "tracker", make="tracker", operation="swanlab.init"),
}

METHODS: dict[tuple[str, str], Effect] = {
    ("writer", "add_scalar"): Effect("value", "track", ("tag", "scalar_value", "global_step")),
    ("writer", "add_scalars"): Effect("value", "track"),
    ("writer", "flush"): Effect("value"),
    ("writer", "close"): Effect("value"),
    ("tracker", "log"): Effect("value", "track"),
}
