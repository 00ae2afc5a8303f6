# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs of jobs that went well, or still run, give no loud finding, whatever words they use."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from allranks.explain import explain

from .book import ask, ended, started, trace

if TYPE_CHECKING:
    from pathlib import Path


def transformers() -> list[str]:
    lines = [
        *started("2.1"),
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base-uncased "
        "and are newly initialized: ['classifier.bias', 'classifier.weight']",
        "You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.",
        "/opt/conda/lib/python3.10/site-packages/torch/nn/parallel/_functions.py:68: UserWarning: Was asked to gather along "
        "dimension 0, but all input tensors were scalars; will instead unsqueeze and return a vector.",
        "  warnings.warn('Was asked to gather along dimension 0')",
        "[rank0]:[W reducer.cpp:1346] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find "
        "any unused parameters in the forward pass. This flag results in an extra traversal of the autograd graph every "
        "iteration (function operator())",
    ]
    for step in range(0, 500, 10):
        lines.append(
            f"{{'loss': {2.3 - step / 400:.4f}, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': {step / 250:.2f}}}"
        )
        lines.append(f" {step // 5:>3}%|█████     | {step}/500 [00:1{step % 10}<00:12, 38.10it/s]\r" * 3)
    return [
        *lines,
        "{'train_runtime': 13.2, 'train_samples_per_second': 302.1, 'train_loss': 0.91, 'epoch': 2.0}",
    ]


def lightning() -> list[str]:
    return [
        "Using 16bit Automatic Mixed Precision (AMP)", "GPU available: True (cuda), used: True", "TPU available: False",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4", "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/4",
        "-" * 80, "distributed_backend=nccl", "All distributed processes registered. Starting with 4 processes", "-" * 80,
        "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3]", "  | Name  | Type       | Params", "0 | model | ResNet     | 11.7 M",
        "/opt/conda/lib/python3.10/site-packages/lightning/pytorch/trainer/connectors/data_connector.py:441: The "
        "'val_dataloader' does not have many workers which may be a bottleneck.",
        "[rank: 1] Seed set to 42", "[rank: 2] Seed set to 42",
        *(f"Epoch {e}: 100%|██████████| 391/391 [00:21<00:00, 18.2it/s, v_num=3, train_error=0.{90 - e}, val_error=0.3]" for e in range(40)),
        "`Trainer.fit` stopped: `max_epochs=40` reached.",
    ]  # fmt: skip


def accelerate() -> list[str]:
    return [
        "08/14/2024 10:00:00 - INFO - __main__ - Distributed environment: MULTI_GPU  Backend: nccl", "Num processes: 2",
        "Process index: 0", "Local process index: 0", "Device: cuda:0", "", "Mixed precision type: fp16", "",
        "08/14/2024 10:00:01 - INFO - __main__ - ***** Running training *****",
        "[rank1]:[W814 10:00:02.118 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 1]  using GPU 1 to perform barrier as "
        "devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping "
        "is incorrect. Specify device_ids in barrier() to force use of a particular device, or call init_process_group() "
        "with a device_id.",
        *(f"08/14/2024 10:0{m}:00 - INFO - __main__ - epoch {m}: {{'accuracy': 0.8{m}, 'error_rate': 0.1{m}}}" for m in range(9)),
        "[rank0]:[W814 10:09:08.402 ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT been destroyed before "
        "we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group",
    ]  # fmt: skip


def detr() -> list[str]:
    return [
        "| distributed init (rank 0): env://", "| distributed init (rank 1): env://", "git:", "  sha: N/A, status: clean",
        "Namespace(aux_loss=True, backbone='resnet50', dist_url='env://', world_size=2)", "number of params: 41302368",
        *(
            f"Epoch: [{e}]  [{i:>4}/118]  eta: 0:01:40  lr: 0.000100  class_error: {e}.{i % 10}  loss: 12.{i}  loss_ce: 0.9  "
            f"cardinality_error_unscaled: 5.2  time: 0.3  data: 0.01  max mem: 5123"
            for e in range(3) for i in range(0, 118, 10)
        ),
        "Averaged stats: class_error: 0.00  loss: 9.1", "IoU metric: bbox", "Training time 1:22:04",
    ]  # fmt: skip


def nanogpt() -> list[str]:
    return [
        "tokens per iteration will be: 491,520", "found vocab_size = 50304", "number of parameters: 123.59M",
        "using fused AdamW: True", "compiling the model... (takes a ~minute)",
        *(f"iter {i}: loss {10 - i / 60:.4f}, time 241.70ms, mfu {30 + i % 3}.21%" for i in range(400)),
        "step 400: train loss 3.3021, val loss 3.3107", "saving checkpoint to out",
    ]  # fmt: skip


def mmengine() -> list[str]:
    return [
        "2024/01/09 08:15:20 - mmengine - INFO - ", "-" * 60, "System environment:", "    sys.platform: linux",
        "    CUDA available: True", "    GPU 0,1,2,3: NVIDIA A100-SXM4-80GB", "Runtime environment:", "    cudnn_benchmark: True",
        "    dist_cfg: {'backend': 'nccl'}", "    Distributed launcher: pytorch", "    Distributed training: True",
        "    GPU number: 4", "2024/01/09 08:15:31 - mmengine - WARNING - Failed to search registry with scope \"mmdet\".",
        "Loads checkpoint by http backend from path: https://x/resnet50.pth",
        "The model and loaded state dict do not match exactly", "",
        "unexpected key in source state_dict: fc.weight, fc.bias", "",
        *(f"2024/01/09 08:{m:02}:00 - mmengine - INFO - Epoch(train)  [1][{m * 50}/7330]  loss: 1.{m}  data_time: 0.01  memory: 4321" for m in range(16, 59)),
        "2024/01/09 09:00:00 - mmengine - INFO - Epoch(val) [1][5000/5000]  coco/bbox_mAP: 0.2210",
    ]  # fmt: skip


def fairseq() -> list[str]:
    return [
        "2023-05-01 10:00:00 | INFO | fairseq.distributed.utils | distributed init (rank 0): tcp://localhost:12345",
        "2023-05-01 10:00:01 | INFO | torch.distributed.distributed_c10d | Added key: store_based_barrier_key:1 to store for rank: 0",
        "2023-05-01 10:00:01 | INFO | torch.distributed.distributed_c10d | Waiting in store based barrier to initialize process "
        "group for rank: 0, key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
        "2023-05-01 10:00:02 | INFO | torch.distributed.distributed_c10d | Rank 0: Completed store-based barrier for key:"
        "store_based_barrier_key:1 with 2 nodes.",
        "2023-05-01 10:00:02 | INFO | fairseq_cli.train | max tokens per device = 4096 and max sentences per device = None",
        "2023-05-01 10:00:05 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0",
        *(f"2023-05-01 10:{m:02}:00 | INFO | train_inner | epoch 001: {m * 100} / 7400 loss=9.{m}, ppl=801.2, wps=51234, ups=3.2" for m in range(1, 59)),
        "2023-05-01 11:00:00 | INFO | fairseq_cli.train | done training in 3599.9 seconds",
    ]  # fmt: skip


def deepspeed() -> list[str]:
    return [
        "[2024-05-01 10:00:00,000] [INFO] [runner.py:570:main] cmd = /usr/bin/python -u -m deepspeed.launcher.launch --master_port=29500 train.py",
        "[2024-05-01 10:00:01,000] [INFO] [launch.py:145:main] WORLD INFO DICT: {'localhost': [0, 1]}",
        "[2024-05-01 10:00:01,000] [INFO] [launch.py:163:main] dist_world_size=2",
        "[2024-05-01 10:00:04,000] [INFO] [comm.py:637:init_distributed] cdb=None",
        "[2024-05-01 10:00:09,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "[2024-05-01 10:00:09,000] [WARNING] [stage3.py:1850:step] 2 pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance.",
        *(f"[2024-05-01 10:{m:02}:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={m * 10}, skipped=1, lr=[1e-05], mom=[(0.9, 0.95)]" for m in range(1, 59)),
        "[2024-05-01 11:00:01,000] [INFO] [launch.py:347:main] Process 811 exits successfully.",
        "[2024-05-01 11:00:01,000] [INFO] [launch.py:347:main] Process 812 exits successfully.",
    ]  # fmt: skip


def timm() -> list[str]:
    return [
        "Training in distributed mode with multiple processes, 1 device per process.Process 0, total 2, device cuda:0.",
        "WARNING: Failed to import apex, using native AMP",
        *(f"Train: {e} [{i:>4}/1251 ({i * 100 // 1251:>3}%)]  Loss: 6.{i % 100:02} (6.90)  Time: 0.512s, 2000.01/s  LR: 1.000e-05  Data: 0.012 (0.012)" for e in range(2) for i in range(0, 1251, 50)),
        "Test: [  48/48]  Time: 0.1 (0.3)  Loss:   1.9 (2.1)  Acc@1: 57.1 (55.3)  Acc@5: 80.1 (79.4)",
        "*** Best metric: 55.3 (epoch 1)",
    ]  # fmt: skip


def words() -> list[str]:
    drawn = random.Random(7)
    said = [
        "error: 0.12", "rank 0 killed time: 3.1 s", "loss timeout 30", "SmoothL1Error: 0.031", "MeanAbsoluteError: 1.25",
        "relative Error : 3e-4", "exception handling module loaded", "TimeoutError handler installed", "val/error=0.3",
        "retrying after ConnectionResetError (attempt 1 of 5)", "Signal 15 dB, noise 3 dB", "killed 3 zombie envs",
        "terminate called for episode 31 (agent fell)", "[rank 1] abort criterion not met", "traceback length 200 for DTW",
        "out of memory bank: 4096 negatives", "cache address already in use count: 0", "Segmentation fault line dataset: 812 images",
        "NCCL version 2.18.1+cuda12.1", "world_size 4, rank 2, no failures", "Failures: 0, Errors: 0, skipped 3",
        "    Error analysis: 12 of 300", "Watchdog started, 600 s", "CUDA error rate 0", "3: loss 0.4", "exitcode 0",
    ]  # fmt: skip
    return [drawn.choice(said) for _ in range(600)]


STYLES = {
    function.__name__: function
    for function in (
        transformers,
        lightning,
        accelerate,
        detr,
        nanogpt,
        mmengine,
        fairseq,
        deepspeed,
        timm,
        words,
    )
}


@pytest.mark.parametrize("style", STYLES)
def test_no_loud_finding(tmp_path: Path, style: str) -> None:
    report = ask(tmp_path, STYLES[style]())
    assert [(one.fault, str(one.message)) for one in report.loud] == []


@pytest.mark.parametrize("style", STYLES)
def test_no_loud_finding_with_prefixes(tmp_path: Path, style: str) -> None:
    for prefix in ("0: ", "[default1]:", "node3: ", "[1,0]<stdout>:", "[pod/job-0/main] "):
        report = ask(tmp_path, [prefix + line for line in STYLES[style]()])
        assert [(one.fault, str(one.message)) for one in report.loud] == []


def test_an_empty_log_beside_another(tmp_path: Path) -> None:
    (tmp_path / "rank1.log").write_text("")
    (tmp_path / "rank0.log").write_text("epoch 1\n")
    assert explain([tmp_path]).findings == []


def test_an_exception_that_the_program_handled(tmp_path: Path) -> None:
    handled = trace(
        [("/srv/data.py", 12, "read", "return decode(raw)")],
        "OSError: image file is truncated (3 bytes not processed)",
    )
    log = [
        "epoch 1 step 10",
        "WARNING: skipping a sample",
        *handled,
        *(f"epoch 1 step {i} loss 0.4" for i in range(11, 300)),
    ]
    assert ask(tmp_path, log).loud == []


def test_an_out_of_memory_error_that_the_program_handled(tmp_path: Path) -> None:
    log = ["| WARNING: ran out of memory, skipping batch: CUDA out of memory. Tried to allocate 2.00 GiB"]
    assert ask(tmp_path, [*log, *(f"step {i} loss 0.4" for i in range(200))]).loud == []


def test_a_retried_connection(tmp_path: Path) -> None:
    log = [
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
        "[W socket.cpp:697] [c10d] The IPv6 network addresses of (node-1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        *(f"step {i} loss 0.4" for i in range(200)),
    ]
    assert ask(tmp_path, log).loud == []


def test_an_exception_that_python_ignores(tmp_path: Path) -> None:
    ignored = trace(
        [
            (
                "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py",
                1478,
                "__del__",
                "self._shutdown_workers()",
            )
        ],
        "AttributeError: 'NoneType' object has no attribute 'join'",
    )
    log = [
        "done",
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>",
        *ignored,
    ]
    assert ask(tmp_path, log).loud == []


def test_but_a_failure_after_an_ordinary_start_is_found(tmp_path: Path) -> None:
    own = trace([("/srv/train.py", 12, "main", "x[k]")], "KeyError: 'k'")
    for style in STYLES:
        report = ask(tmp_path, [*STYLES[style](), *own, *ended({0: 1})])
        assert report.findings[0].fault == "child-failed-first", style


@pytest.mark.parametrize(
    "line",
    [
        "| WARNING: ran out of memory in worker 0: CUDA out of memory. Tried to allocate 2.00 GiB; skipping batch",
        "2024-01-01 10:00:00 | INFO | trainer | recovering: DataLoader worker (pid 7) is killed by signal: Killed",
        '[INFO] sample: "RuntimeError: CUDA out of memory happens when batches are long"',
    ],
)
def test_what_its_writer_does_not_take_for_a_failure(tmp_path: Path, line: str) -> None:
    assert ask(tmp_path, ["step 1", line, "step 2", "step 3"]).loud == []
    assert ask(tmp_path, ["step 1", line]).loud
