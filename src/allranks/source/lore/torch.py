"""PyTorch: process groups and collectives, wrappers, loaders, optimizers, amp, checkpoints, launching."""

from __future__ import annotations

from ..values import Kind
from .effect import Effect

_D = "torch.distributed."
_DATA = {"kind": Kind.DATA}

ALIASES = [
    ("torch.distributed.distributed_c10d.", _D),
    ("torch.distributed.nn.functional.", "torch.distributed.nn."),
    ("torch.distributed._functional_collectives.", "torch.distributed.funcol."),
    ("torch.nn.parallel.distributed.", "torch.nn.parallel."),
    ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"),
    ("torch.nn.SyncBatchNorm", "torch.nn.SyncBatchNorm"),
    ("torch.nn.modules.batchnorm.", "torch.nn."),
    ("torch.nn.modules.", "torch.nn."),
    ("torch.nn.functional.", "torch.nn.functional."),
    ("torch.nn.utils.clip_grad.", "torch.nn.utils."),
    ("torch.utils.data.distributed.", "torch.utils.data."),
    ("torch.utils.data.dataloader.", "torch.utils.data."),
    ("torch.utils.data.sampler.", "torch.utils.data."),
    ("torch.utils.data.dataset.", "torch.utils.data."),
    ("torch.cuda.amp.grad_scaler.", "torch.amp."),
    ("torch.cuda.amp.autocast_mode.", "torch.amp."),
    ("torch.cuda.amp.", "torch.amp."),
    ("torch.amp.grad_scaler.", "torch.amp."),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", "torch.distributed.fsdp."),
    ("torch.distributed._composable.fsdp.", "torch.distributed.fsdp."),
    ("torch.distributed._tensor.", "torch.distributed.tensor."),
    ("torch.distributed.checkpoint.state_dict_saver.", "torch.distributed.checkpoint."),
    ("torch.distributed.checkpoint.state_dict_loader.", "torch.distributed.checkpoint."),
    ("torch.multiprocessing.spawn.spawn", "torch.multiprocessing.spawn"),
    ("torch.random.manual_seed", "torch.manual_seed"),
    ("torch.serialization.", "torch."),
    ("torch.optim.adamw.", "torch.optim."),
    ("torch.optim.sgd.", "torch.optim."),
    ("torch.optim.adam.", "torch.optim."),
    ("torch.distributed.algorithms.join.", "torch.distributed.algorithms."),
    ("torch.distributed.elastic.multiprocessing.errors.record", "torch.distributed.elastic.record"),
    ("apex.parallel.distributed.", "apex.parallel."),
]


def _collective(target: str, kind: Kind, *params: str, operation: str = "") -> Effect:
    return Effect("collective", "collective", params, kind=kind, target=target, operation=operation)


_U, _R = Kind.UNIFORM, Kind.RANK
_COLLECTIVES = {
    "all_reduce": _collective("tensor", _U, "tensor", "op", "group", "async_op"),
    "all_reduce_coalesced": _collective("tensors", _U, "tensors", "op", "group", "async_op"),
    "reduce": _collective("tensor", _R, "tensor", "dst", "op", "group", "async_op"),
    "broadcast": _collective("tensor", _U, "tensor", "src", "group", "async_op"),
    "broadcast_object_list": _collective("object_list", _U, "object_list", "src", "group", "device"),
    "all_gather": _collective("tensor_list", _U, "tensor_list", "tensor", "group", "async_op"),
    "all_gather_into_tensor": _collective("output_tensor", _U, "output_tensor", "input_tensor", "group", "async_op"),
    "_all_gather_base": _collective("output_tensor", _U, "output_tensor", "input_tensor", "group", "async_op"),
    "all_gather_object": _collective("object_list", _U, "object_list", "obj", "group"),
    "all_gather_coalesced": _collective("output_tensor_lists", _U, "output_tensor_lists", "input_tensor_list", "group"),
    "gather": _collective("gather_list", _R, "tensor", "gather_list", "dst", "group", "async_op"),
    "gather_object": _collective("object_gather_list", _R, "obj", "object_gather_list", "dst", "group"),
    "scatter": _collective("tensor", _R, "tensor", "scatter_list", "src", "group", "async_op"),
    "scatter_object_list": _collective("scatter_object_output_list", _R, "scatter_object_output_list",
                                       "scatter_object_input_list", "src", "group"),
    "reduce_scatter": _collective("output", _R, "output", "input_list", "op", "group", "async_op"),
    "reduce_scatter_tensor": _collective("output", _R, "output", "input", "op", "group", "async_op"),
    "all_to_all": _collective("output_tensor_list", _R, "output_tensor_list", "input_tensor_list", "group", "async_op"),
    "all_to_all_single": _collective("output", _R, "output", "input", "output_split_sizes", "input_split_sizes",
                                     "group", "async_op"),
    "barrier": _collective("", _U, "group", "async_op", "device_ids"),
    "monitored_barrier": _collective("", _U, "group", "timeout", "wait_all_ranks"),
}  # fmt: skip

NAMES: dict[str, Effect] = {_D + name: effect for name, effect in _COLLECTIVES.items()}
NAMES |= {
    f"torch.distributed.nn.{name}": Effect(
        "exchange", "collective", ("tensor", "op", "group"), kind=kind, operation=name
    )
    for name, kind in (
        ("all_reduce", _U), ("all_gather", _U), ("broadcast", _U), ("reduce", _R), ("gather", _R), ("scatter", _R),
        ("reduce_scatter", _R), ("all_to_all", _R), ("all_to_all_single", _R),
    )
}  # fmt: skip
NAMES |= {
    f"torch.distributed.funcol.{name}": Effect(
        "exchange", "collective", ("tensor", "op", "group"), kind=kind, operation=name
    )
    for name, kind in (
        ("all_reduce", _U), ("all_gather_tensor", _U), ("broadcast", _U), ("reduce_scatter_tensor", _R),
        ("all_to_all_single", _R), ("all_gather_tensor_autograd", _U), ("reduce_scatter_tensor_autograd", _R),
    )
}  # fmt: skip

# Process groups and ranks
NAMES |= {
    _D + "init_process_group": Effect(
        "initialise", "init",
        ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options", "device_id"),
        operation="init_process_group",
    ),
    _D + "destroy_process_group": Effect("value", "destroy", ("group",)),
    _D + "new_group": Effect(
        "make", "new_group", ("ranks", "timeout", "backend"), make="group", operation="new_group"
    ),
    _D + "new_subgroups": Effect("value", "new_group", ("group_size",), operation="new_subgroups"),
    _D + "split_group": Effect("value", "new_group", ("parent_pg", "split_ranks"), operation="split_group"),
    _D + "init_device_mesh": Effect(
        "initialise", "init", ("device_type", "mesh_shape"), make="mesh", operation="init_device_mesh"
    ),
    _D + "device_mesh.init_device_mesh": Effect(
        "initialise", "init", ("device_type", "mesh_shape"), make="mesh", operation="init_device_mesh"
    ),
    _D + "get_rank": Effect("rank_in", "rank", params=("group",), lane="rank"),
    _D + "get_world_size": Effect("rank_in", "rank", params=("group",), lane="world_size"),
    _D + "get_node_local_rank": Effect("lanes", lane="local_rank"),
    _D + "is_initialized": Effect("initialised"),
    _D + "is_available": Effect("true"),
    _D + "is_torchelastic_launched": Effect("value"),
    _D + "get_group_rank": Effect("value", kind=Kind.GROUP),
    _D + "get_global_rank": Effect("value"),
    _D + "get_backend": Effect("value"),
    _D + "group.WORLD": Effect("none"),
    _D + "send": Effect("value", "p2p", ("tensor", "dst", "group", "tag"), operation="send"),
    _D + "recv": Effect("received", "p2p", ("tensor", "src", "group", "tag"), operation="recv"),
    _D + "isend": Effect("make", "p2p", ("tensor", "dst", "group", "tag"), make="work", operation="isend"),
    _D + "irecv": Effect("received", "p2p", ("tensor", "src", "group", "tag"), make="work", operation="irecv"),
    _D + "batch_isend_irecv": Effect("value", "p2p", ("p2p_op_list",), operation="batch_isend_irecv"),
    "torch.cuda.device_count": Effect("lanes", lane="local_size"),
    "torch.accelerator.device_count": Effect("lanes", lane="local_size"),
    "torch.npu.device_count": Effect("lanes", lane="local_size"),
    "torch.xpu.device_count": Effect("lanes", lane="local_size"),
    "torch.cuda.is_available": Effect("value"),
    "torch.device": Effect("like", "device", ("type", "index")),
    "torch.cuda.current_device": Effect("value"),
    "torch.cuda.set_device": Effect("value", "set_device", ("device",)),
    "torch.npu.set_device": Effect("value", "set_device", ("device",)),
    "torch.xpu.set_device": Effect("value", "set_device", ("device",)),
    "torch.accelerator.set_device_index": Effect("value", "set_device", ("device",)),
    "torch.accelerator.set_device_idx": Effect("value", "set_device", ("device",)),
    "torch.cuda.memory_allocated": Effect("value", kind=Kind.DATA, cause="memory"),
    "torch.cuda.max_memory_allocated": Effect("value", kind=Kind.DATA, cause="memory"),
    "torch.cuda.memory_reserved": Effect("value", kind=Kind.DATA, cause="memory"),
    "torch.cuda.mem_get_info": Effect("value", kind=Kind.DATA, cause="memory"),
    "torch.cuda.synchronize": Effect("wait"),
    "torch.multiprocessing.spawn": Effect("spawn", "spawn", ("fn", "args", "nprocs", "join", "daemon", "start_method")),
    "torch.multiprocessing.start_processes": Effect(
        "spawn", "spawn", ("fn", "args", "nprocs", "join", "daemon", "start_method")
    ),
    "torch.multiprocessing.Process": Effect("process", "spawn", ("group", "target", "name", "args", "kwargs")),
    "torch.multiprocessing.get_context": Effect("make", make="mp"),
    "torch.multiprocessing.set_start_method": Effect("value"),
    "multiprocessing.Process": Effect("process", "spawn", ("group", "target", "name", "args", "kwargs")),
    "multiprocessing.get_context": Effect("make", make="mp"),
    "torch.distributed.launcher.api.elastic_launch": Effect("value"),
    "torch.distributed.elastic.record": Effect("pass", target="0"),
}  # fmt: skip

# Wrappers
_DDP = ("module", "device_ids", "output_device", "dim", "broadcast_buffers", "process_group", "bucket_cap_mb",
        "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph")  # fmt: skip
NAMES |= {
    "torch.nn.parallel.DistributedDataParallel": Effect(
        "wrap", "wrap", _DDP, make="ddp", hidden="DDP construction", operation="DistributedDataParallel"
    ),
    "apex.parallel.DistributedDataParallel": Effect(
        "wrap", "wrap", ("module", "message_size", "delay_allreduce"), make="ddp", hidden="DDP construction",
        operation="DistributedDataParallel",
    ),
    "torch.nn.parallel.DataParallel": Effect("wrap", "wrap", ("module", "device_ids"), make="dp"),
    "torch.distributed.fsdp.FullyShardedDataParallel": Effect(
        "wrap", "wrap", ("module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy"),
        make="fsdp", hidden="FSDP construction", operation="FullyShardedDataParallel",
    ),
    "fairscale.nn.FullyShardedDataParallel": Effect("wrap", "wrap", ("module",), make="fsdp", operation="FSDP"),
    "fairscale.nn.data_parallel.FullyShardedDataParallel": Effect("wrap", "wrap", ("module",), make="fsdp"),
    "torch.distributed.fsdp.fully_shard": Effect("shard", "wrap", ("module",), make="fsdp", target="module"),
    "torch.distributed.tensor.parallel.parallelize_module": Effect(
        "pass", "wrap", ("module", "device_mesh", "parallelize_plan"), target="module", operation="parallelize_module"
    ),
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": Effect(
        "sync_batch_norm", "sync_bn", ("module", "process_group"), target="module"
    ),
    "apex.parallel.convert_syncbn_model": Effect("sync_batch_norm", "sync_bn", ("module",), target="module"),
    "torch.compile": Effect("pass", "compile", ("model",), target="model"),
    "torch.jit.script": Effect("pass", params=("obj",), target="obj"),
    "torch.autograd.Variable": Effect("pass", params=("data",), target="data"),
    "torch.distributed.algorithms.Join": Effect("make", make="join", params=("joinables",)),
    "torch.distributed.optim.ZeroRedundancyOptimizer": Effect(
        "make", "optimizer", ("params", "optimizer_class"), make="optimizer", hidden="ZeRO optimizer"
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel.state_dict_type": Effect("make", make="context"),
    "torch.distributed.fsdp.FullyShardedDataParallel.set_state_dict_type": Effect("value"),
    "torch.distributed.fsdp.FullyShardedDataParallel.optim_state_dict": Effect(
        "like", "collective", ("model", "optim"), hidden="FSDP optimizer state", operation="optim_state_dict"
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel.full_optim_state_dict": Effect(
        "like", "collective", ("model", "optim"), hidden="FSDP optimizer state", operation="full_optim_state_dict"
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel.scatter_full_optim_state_dict": Effect(
        "like", "collective", hidden="FSDP optimizer state", operation="scatter_full_optim_state_dict"
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel.summon_full_params": Effect(
        "make", "collective", ("module",), make="context", hidden="FSDP parameters gathered",
        operation="summon_full_params",
    ),
}  # fmt: skip
NAMES |= {
    f"torch.distributed.checkpoint.{name}": Effect(
        "value", "collective", hidden="distributed checkpoint", operation=f"checkpoint.{name}"
    )
    for name in ("save", "load", "async_save", "save_state_dict", "load_state_dict")
}
NAMES |= {
    f"torch.distributed.checkpoint.state_dict.{name}": Effect(
        "value", "collective", ("model",), hidden="sharded state dict", operation=name
    )
    for name in (
        "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict",
        "set_optimizer_state_dict", "set_state_dict",
    )
}  # fmt: skip

# Data
_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
           "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator")  # fmt: skip
NAMES |= {
    "torch.utils.data.DataLoader": Effect("make", "loader", _LOADER, make="loader"),
    "torch.utils.data.DistributedSampler": Effect(
        "make", "sampler", ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last"),
        make="distributed_sampler",
    ),
    "torch.utils.data.RandomSampler": Effect(
        "make", "sampler", ("data_source", "replacement", "num_samples", "generator"), make="sampler"
    ),
    "torch.utils.data.SequentialSampler": Effect("make", "sampler", ("data_source",), make="sampler"),
    "torch.utils.data.WeightedRandomSampler": Effect("make", "sampler", ("weights", "num_samples"), make="sampler"),
    "torch.utils.data.SubsetRandomSampler": Effect("make", "sampler", ("indices",), make="sampler"),
    "torch.utils.data.BatchSampler": Effect(
        "make", "sampler", ("sampler", "batch_size", "drop_last"), make="batch_sampler"
    ),
    "torch.utils.data.Subset": Effect("make", "dataset", ("dataset", "indices"), make="dataset"),
    "torch.utils.data.TensorDataset": Effect("make", "dataset", make="dataset"),
    "torch.utils.data.ConcatDataset": Effect("make", "dataset", ("datasets",), make="dataset"),
    "torch.utils.data.random_split": Effect("split", "split", ("dataset", "lengths", "generator")),
    "torchdata.stateful_dataloader.StatefulDataLoader": Effect("make", "loader", _LOADER, make="loader"),
}  # fmt: skip

# Optimizing
NAMES |= {
    "torch.amp.GradScaler": Effect("make", "scaler", ("device", "init_scale"), make="scaler"),
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": Effect("make", "scaler", make="scaler"),
    "torch.nn.utils.clip_grad_norm_": Effect("like", "clip", ("parameters", "max_norm", "norm_type")),
    "torch.nn.utils.clip_grad_value_": Effect("like", "clip", ("parameters", "clip_value")),
    "torch.autograd.backward": Effect("backward", "backward", ("tensors",), target="tensors"),
    "torch.autograd.grad": Effect("like", "grad", ("outputs", "inputs")),
    "torch.no_grad": Effect("make", make="no_grad"),
    "torch.inference_mode": Effect("make", make="no_grad"),
    "torch.enable_grad": Effect("make", make="context"),
    "torch.set_grad_enabled": Effect("make", make="context"),
    "torch.amp.autocast": Effect("make", make="autocast"),
    "torch.autocast": Effect("make", make="autocast"),
    "torch.optim.swa_utils.AveragedModel": Effect("make", "module", ("model",), make="module"),
    "torch.manual_seed": Effect("seed", "seed", ("seed",)),
    "torch.seed": Effect("value", "seed"),
    "torch.cuda.manual_seed": Effect("value", "seed", ("seed",)),
    "torch.cuda.manual_seed_all": Effect("value", "seed", ("seed",)),
    "torch.Generator": Effect("make", make="generator", params=("device",)),
    "torch.save": Effect("value", "save", ("obj", "f")),
    "torch.load": Effect("value", "load", ("f", "map_location", "pickle_module")),
    "torch.hub.load_state_dict_from_url": Effect("value", "load", ("url", "model_dir", "map_location")),
    "torch.utils.checkpoint.checkpoint": Effect("checkpoint", params=("function",)),
    "torch.utils.tensorboard.SummaryWriter": Effect("make", "writer", ("log_dir",), make="writer"),
    "torch.profiler.profile": Effect("make", make="profiler"),
    "torch.distributed.rpc.init_rpc": Effect("value", "rpc", ("name",)),
    "torch.distributed.rpc.shutdown": Effect("value", "rpc"),
}
NAMES |= {
    f"torch.{name}": Effect("draw", "random", kind=Kind.DATA, cause="random")
    for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like",
                 "randn_like", "randint_like", "poisson")
}  # fmt: skip
NAMES |= {
    f"torch.{name}": Effect("fresh")
    for name in ("zeros", "ones", "empty", "full", "eye", "arange", "linspace", "zeros_like", "ones_like", "empty_like",
                 "full_like")
}  # fmt: skip
NAMES |= {
    f"torch.{name}": Effect("tensor", params=("data",)) for name in ("tensor", "as_tensor", "FloatTensor", "LongTensor",
                                                                    "IntTensor", "cuda.FloatTensor", "from_numpy")
}  # fmt: skip

PATTERNS = [
    (r"torch\.optim\.lr_scheduler\.[A-Z]", Effect("make", "scheduler", ("optimizer",), make="scheduler")),
    (r"torch\.optim\.[A-Z]", Effect("make", "optimizer", ("params", "lr"), make="optimizer")),
    (r"(apex|bitsandbytes|torch_optimizer|timm|pytorch_optimizer|lion_pytorch)\.optim\w*\.\w*[A-Z]",
     Effect("make", "optimizer", ("params", "lr"), make="optimizer")),
    (r"transformers\.(AdamW|Adafactor)", Effect("make", "optimizer", ("params", "lr"), make="optimizer")),
    (r"torch\.nn\.(Sequential|ModuleList|ModuleDict)$", Effect("make", make="module")),
    (r"torch\.nn\.[A-Z]\w*Loss", Effect("make", make="loss")),
    (r"torch\.nn\.(Parameter|parameter\.Parameter)$", Effect("fresh")),
    (r"torch\.nn\.[A-Z]", Effect("make", make="module")),
    (r"torchvision\.models\.", Effect("make", "module", make="module")),
    (r"timm\.(models\.)?create_model|segmentation_models_pytorch\.|monai\.networks",
     Effect("make", "module", make="module")),
    (r"torchvision\.datasets\.[A-Z]", Effect("make", "dataset", ("root",), make="dataset")),
    (r"torchmetrics(\.\w+)*\.[A-Z]\w*$", Effect("make", "metric", make="metric")),
    (r"transformers\.\w+\.from_(pretrained|config)", Effect("make", "module", make="module")),
    (r"torch\.profiler\.|torch\.autograd\.profiler\.", Effect("make", make="context")),
]  # fmt: skip

METHODS: dict[tuple[str, str], Effect] = {
    ("ddp", "no_sync"): Effect("make", make="no_sync"),
    ("fsdp", "no_sync"): Effect("make", make="no_sync"),
    ("ddp", "join"): Effect("make", make="join"),
    ("ddp", "register_comm_hook"): Effect("value", "comm_hook", ("state", "hook")),
    ("fsdp", "state_dict"): Effect("value", "collective", hidden="FSDP state dict", operation="state_dict"),
    ("fsdp", "sharded_state_dict"): Effect(
        "value", "collective", hidden="FSDP state dict", operation="state_dict"
    ),
    ("fsdp", "clip_grad_norm_"): Effect(
        "value", "collective", hidden="FSDP gradient norm", operation="clip_grad_norm_"
    ),
    ("scaler", "scale"): Effect("pass", "scale", ("loss",), target="0"),
    ("scaler", "unscale_"): Effect("value", "unscale", ("optimizer",)),
    ("scaler", "step"): Effect("value", "step", ("optimizer",)),
    ("scaler", "update"): Effect("value", "update"),
    ("scaler", "state_dict"): Effect("value"),
    ("optimizer", "step"): Effect("optimizer_step", "step", ("closure",)),
    ("optimizer", "zero_grad"): Effect("value", "zero_grad"),
    ("optimizer", "add_param_group"): Effect("value", "add_param_group", ("param_group",)),
    ("scheduler", "step"): Effect("value", "scheduler_step", ("metrics",)),
    ("distributed_sampler", "set_epoch"): Effect("value", "set_epoch", ("epoch",)),
    ("work", "wait"): Effect("wait", "wait"),
    ("work", "get_future"): Effect("pass", target="self"),
    ("group", "rank"): Effect("value", kind=Kind.GROUP),
    ("group", "size"): Effect("value"),
    ("mesh", "get_local_rank"): Effect("value", kind=Kind.GROUP),
    ("mesh", "get_group"): Effect("make", make="group_unknown"),
    ("mesh", "size"): Effect("value"),
    ("mesh", "get_rank"): Effect("lanes", lane="rank"),
    ("generator", "manual_seed"): Effect("seed_generator", params=("seed",)),
    ("generator", "seed"): Effect("seed_generator"),
    ("metric", "compute"): Effect(
        "value", "collective", hidden="metric synchronisation", operation="metric.compute"
    ),
    ("metric", "update"): Effect("value", "metric_update"),
    ("metric", "reset"): Effect("value"),
    ("mp", "Process"): Effect("process", "spawn", ("group", "target", "name", "args", "kwargs")),
    ("*", "backward"): Effect("backward", "backward", target="self"),
    ("*", "set_epoch"): Effect("value", "set_epoch", ("epoch",)),
    ("*", "zero_grad"): Effect("value", "zero_grad"),
    ("*", "no_sync"): Effect("make", make="no_sync"),
    ("*", "clip_grad_norm_"): Effect("value", "clip"),
    ("*", "wait"): Effect("wait", "wait"),
    ("*", "load_state_dict"): Effect("value", "load_state", ("state_dict", "strict")),
    ("*", "requires_grad_"): Effect("pass", "freeze", ("requires_grad",), target="self"),
    ("*", "register_hook"): Effect("value", "grad_hook", ("hook",)),
    ("*", "add_module"): Effect("value", "set_module", ("name", "module")),
    ("*", "register_module"): Effect("value", "set_module", ("name", "module")),
    ("*", "register_parameter"): Effect("value", "set_module", ("name", "param")),
    ("*", "unscale_"): Effect("value", "unscale", ("optimizer",)),
    ("*", "is_set_to_none"): Effect("value"),
}
for _name in ("cuda", "to", "cpu", "half", "float", "double", "bfloat16", "to_empty"):
    METHODS["*", _name] = Effect("pass", "move", ("device",), target="self")
for _name in ("train", "eval"):
    METHODS["*", _name] = Effect("mode", "mode", ("mode",), target=_name)
for _name in (
    "detach",
    "contiguous",
    "requires_grad",
    "share_memory",
    "view",
    "view_as",
    "reshape",
    "flatten",
):
    METHODS["*", _name] = Effect("pass", target="self")

ATTRIBUTES: dict[tuple[str, str], Effect] = {
    ("ddp", "module"): Effect("field", target="module"),
    ("dp", "module"): Effect("field", target="module"),
    ("fsdp", "module"): Effect("field", target="module"),
    ("name", "torch.distributed.group.WORLD"): Effect("none"),
    ("name", "torch.distributed.GroupMember.WORLD"): Effect("none"),
}
