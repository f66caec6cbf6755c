#!/usr/bin/env python3
"""Loads a Hugging Face Llama folder into FSDP2 shards with PyTorch, for comparison, on ranks of this host (gloo).

    python torch_load.py MODEL --method dcp|rank0 [--ranks 2] [--dtype bf16|f32]

dcp     meta model, fully_shard, torch.distributed.checkpoint's HuggingFaceStorageReader: each rank reads its slices
rank0   rank 0 loads all, the others hold a meta model and receive a broadcast (accelerate's low-RAM loading with FSDP2)

Prints one JSON line: seconds between two barriers around the load, and the peak over time of the ranks' summed PSS less
that before the load, in MiB.
"""
import argparse, json, os, socket, threading, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--method", choices=["dcp", "rank0"], required=True)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
options = parser.parse_args()


def pss_mib(pid):
    try:
        return next(int(line.split()[1]) / 1024 for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0.0


def load(config, dtype):
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if options.method == "dcp":
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint import HuggingFaceStorageReader

        model.to_empty(device="cpu")
        state = model.state_dict()
        if config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        checkpoint.load(state, storage_reader=HuggingFaceStorageReader(options.model))
    else:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).state_dict() if dist.get_rank() == 0 else {}
        set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


def rank_main(rank, port, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import transformers
    from transformers import AutoConfig

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = AutoConfig.from_pretrained(options.model)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    dist.barrier()
    results.put(("ready", os.getpid()))
    dist.barrier()
    began = time.perf_counter()
    model = load(config, dtype)
    dist.barrier()
    held = sum(p.to_local().numel() * p.to_local().element_size() for p in model.parameters())
    results.put(("done", (time.perf_counter() - began, held)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").Queue()
    ranks = mp.spawn(rank_main, args=(port, results), nprocs=options.ranks, join=False)
    pids = [results.get()[1] for _ in range(options.ranks)]
    before, peak, stop = sum(map(pss_mib, pids)), 0.0, threading.Event()

    def watch():
        global peak
        while not stop.wait(0.05):
            peak = max(peak, sum(map(pss_mib, pids)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = [results.get()[1] for _ in range(options.ranks)]
    stop.set()
    watcher.join()
    while not ranks.join():
        pass
    import transformers

    print(json.dumps({"seconds": max(seconds for seconds, _ in done), "peak_mib": max(peak, 0.0) - before, "shards_mib": sum(held for _, held in done) / 2**20,
                      "torch": torch.__version__, "transformers": transformers.__version__}))
