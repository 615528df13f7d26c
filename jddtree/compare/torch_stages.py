"""The PyTorch side of `python -m jddtree.compare torch`: the public models, stage by stage, into one file.

    PYTHON torch_stages.py REQUEST.json OUT.safetensors

It stands alone, for an environment that has torch, transformers and safetensors and none of this project.
REQUEST holds ``target`` and ``drafter`` (published folders; drafter may be null), ``dtype``, ``device``,
``prompts`` (lists of ids), ``new_tokens``, ``budget`` and ``topk`` (null: no cap). OUT gets an array a prompt
and stage, named ``PROMPT/STAGE``, and what the run was as metadata.
"""

import heapq
import json
import math
import sys
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn


def read_tensors(folder):
    """Every tensor of a published folder, by name."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                tensors[name] = opened.get_tensor(name)
    return tensors


def dense(tensors):
    """INT4 (compressed-tensors pack-quantized, symmetric) to bfloat16: low nibble first, offset 8."""
    plain = {}
    for name, value in tensors.items():
        if name.endswith(".weight_packed"):
            base = name.removesuffix("_packed")
            shifts = torch.arange(0, 32, 4, dtype=torch.int32)
            q = ((value[..., None] >> shifts) & 15) - 8
            scale = tensors[base + "_scale"]
            groups = q.reshape(*scale.shape, -1).float() * scale.float()[..., None]
            plain[base] = groups.reshape(value.shape[0], -1).to(torch.bfloat16)
        elif not name.endswith((".weight_scale", ".weight_shape", ".inv_freq")):
            plain[name] = value
    return plain


def load_target(folder, dtype, device):
    """The target as transformers has it. Kimi K2 runs as DeepSeek-V3, which is what its own code is."""
    raw = json.loads((Path(folder) / "config.json").read_text())
    text = raw.get("text_config") or raw
    if text.get("model_type") not in ("kimi_k2", "deepseek_v3"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return model.to(device).eval()
    skipped = ("model_type", "architectures", "auto_map", "quantization_config", "torch_dtype", "dtype")
    config = transformers.DeepseekV3Config(**{k: v for k, v in text.items() if k not in skipped})
    config.tie_word_embeddings = bool(text.get("tie_word_embeddings", False))
    with torch.device("meta"):
        model = transformers.DeepseekV3ForCausalLM(config)
    wanted = model.state_dict()
    tensors = {name.removeprefix("language_model."): t for name, t in dense(read_tensors(folder)).items()}
    state = {}
    for name in wanted:
        if name.endswith("experts.gate_up_proj"):
            parts = [stacked(tensors, name, kind, len(wanted[name])) for kind in ("gate_proj", "up_proj")]
            state[name] = torch.cat(parts, dim=1)
        elif name.endswith("experts.down_proj"):
            state[name] = stacked(tensors, name, "down_proj", len(wanted[name]))
        else:
            state[name] = tensors[name]
        kept = name.endswith("e_score_correction_bias")
        state[name] = state[name].to(device, torch.float32 if kept else dtype)
    model.load_state_dict(state, assign=True)
    # Made on the meta device, so the rotary buffers hold nothing yet.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    return model.eval()


def stacked(tensors, name, kind, count):
    """One projection of all experts, [E, out, in]."""
    prefix = name.rsplit(".", 1)[0]
    return torch.stack([tensors[f"{prefix}.{expert}.{kind}.weight"] for expert in range(count)])


class Layer(nn.Module):
    """A drafter layer: pre-norm attention of the block over [context ; block], then SwiGLU."""

    def __init__(self, config, window, causal):
        super().__init__()
        width, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or width // heads
        self.window, self.causal, eps = window, causal, config["rms_norm_eps"]
        for name, size in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
            setattr(self, name, nn.Linear(width, size * self.dim, bias=False))
        self.o_proj = nn.Linear(heads * self.dim, width, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.dim, eps), nn.RMSNorm(self.dim, eps)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        inner = config["intermediate_size"]
        self.gate_proj, self.up_proj = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x, context, cos, sin):
        h = self.input_layernorm(x)
        both = torch.cat([context, h], dim=1)
        q = rotate(self.q_norm(self.heads(self.q_proj(h))), cos[-x.shape[1] :], sin[-x.shape[1] :])
        k = rotate(self.k_norm(self.heads(self.k_proj(both))), cos, sin)
        v = self.heads(self.v_proj(both))
        repeat = q.shape[1] // k.shape[1]
        seen = None
        if self.window is not None:
            query = torch.arange(context.shape[1], both.shape[1], device=x.device)[:, None]
            behind = query - torch.arange(both.shape[1], device=x.device)
            seen = (behind < self.window) & (behind > (-1 if self.causal else -self.window))
        attended = nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), seen
        )
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))

    def heads(self, x):
        return x.unflatten(-1, (-1, self.dim)).transpose(1, 2)


def rotate(x, cos, sin):
    """Rotary positions over halves of [B, H, T, dim]."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


class Drafter(nn.Module):
    """A DFlash drafter, for where the public `dflash` package is not installed."""

    def __init__(self, config):
        super().__init__()
        nested = config.get("dflash_config") or {}
        self.raw, width = {**config, **nested}, config["hidden_size"]
        types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
        causal = nested.get("causal")
        causal = config.get("is_causal", config.get("causal")) if causal is None else causal
        self.target_layer_ids = self.raw["target_layer_ids"]
        self.fc = nn.Linear(len(self.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, config["rms_norm_eps"])
        self.norm = nn.RMSNorm(width, config["rms_norm_eps"])
        self.layers = nn.ModuleList(
            Layer(
                config,
                config["sliding_window"] if kind == "sliding_attention" else None,
                True if causal is None else bool(causal),
            )
            for kind in types
        )

    def forward(self, position_ids, noise_embedding, target_hidden):
        context = self.hidden_norm(self.fc(target_hidden))
        inverse, amplitude = frequencies(self.raw, self.layers[0].dim)
        angles = position_ids[0].float()[:, None] * inverse.to(position_ids.device)
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
        x = noise_embedding
        for layer in self.layers:
            x = layer(x, context, cos, sin)
        return self.norm(x)


def frequencies(raw, dim):
    """Angles a position [dim / 2] and amplitude, through the rope table that transformers uses."""
    rope = {
        "rope_theta": raw.get("rope_theta"),
        **(raw.get("rope_scaling") or raw.get("rope_parameters") or {}),
    }
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim), 1.0
    kind = {"deepseek_yarn": "yarn"}.get(kind, kind)
    own = ("rope_scaling", "rope_parameters", "rope_theta", "dflash_config", "architectures", "model_type")
    kept = {key: value for key, value in raw.items() if key not in own}
    config = transformers.Qwen3Config(
        **(kept | {"head_dim": dim, "rope_parameters": rope | {"rope_type": kind}})
    )
    return transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")


def load_drafter(folder, dtype, device):
    """(drafter, where its code comes from)."""
    config = json.loads((Path(folder) / "config.json").read_text())
    tensors = {name.removeprefix("model."): t for name, t in dense(read_tensors(folder)).items()}
    try:
        from dflash import DFlashDraftModel
    except ImportError:
        model, source = Drafter(config), "PyTorch twin in this script"
        inside = ("self_attn.", "mlp.")
        tensors = {name.replace(inside[0], "").replace(inside[1], ""): t for name, t in tensors.items()}
    else:
        kept = {k: v for k, v in config.items() if k not in ("architectures", "quantization_config")}
        model, source = DFlashDraftModel(transformers.Qwen3Config(**kept)), "the dflash package"
    model.load_state_dict(tensors)
    return model.to(device, dtype).eval(), source


def best_tree(log_probs, budget, topk):
    """The reference's heap: best prefixes under the product of the marginals, ties to the smaller ranks.

    log_probs: [D, V]. Returns tokens, parents (slots; the root is 0) and ranks.
    """
    width = min(budget if topk is None else min(budget, topk), log_probs.shape[1])
    values, tokens = (part.tolist() for part in log_probs.double().topk(width, dim=-1))
    heap: list[tuple[float, tuple[int, ...], int]] = [(-values[0][0], (0,), 0)]
    nodes = []
    while heap and len(nodes) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        depth, rank = len(ranks) - 1, ranks[-1]
        nodes.append((tokens[depth][rank], parent))
        if rank + 1 < width and math.isfinite(values[depth][rank + 1]):
            beside = -cost - values[depth][rank] + values[depth][rank + 1]
            heapq.heappush(heap, (-beside, (*ranks[:-1], rank + 1), parent))
        if depth + 1 < len(values) and math.isfinite(values[depth + 1][0]):
            heapq.heappush(heap, (cost - values[depth + 1][0], (*ranks, 0), len(nodes)))
    return [token for token, _ in nodes], [parent for _, parent in nodes]


class Recorder:
    """Keeps the outputs of modules while the model runs."""

    def __init__(self):
        self.kept = {}

    def watch(self, name, module):
        def hook(_, __, output):
            self.kept[name] = (output[0] if isinstance(output, tuple) else output)[0]

        return module.register_forward_hook(hook)

    def watch_router(self, name, gate):
        def hook(module, inputs, _):
            x = inputs[0].reshape(-1, inputs[0].shape[-1])
            scores = nn.functional.linear(x.float(), module.weight.float()).sigmoid()
            self.kept[f"{name} router choice"] = scores + module.e_score_correction_bias
            self.kept[f"{name} router bias"] = module.e_score_correction_bias

        return gate.register_forward_hook(hook)


def run_target(model, ids, positions, seen):
    """Stages of one pass without a cache; ``seen`` [N, N] bool says which slot sees which."""
    recorder, hooks = Recorder(), []
    hooks.append(recorder.watch("embed", model.get_input_embeddings()))
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate"):
            hooks.append(recorder.watch_router(f"layer {index}", layer.mlp.gate))
        hooks.append(recorder.watch(f"layer {index}", layer))
    hooks.append(recorder.watch("norm", model.model.norm))
    dtype = next(model.parameters()).dtype
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    device = model.device
    logits = model(
        torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        attention_mask=mask[None, None].to(device),
        use_cache=False,
    ).logits[0]
    for hook in hooks:
        hook.remove()
    return recorder.kept | {"logits": logits.float()}


def greedy(model, prompt, count):
    """Greedy ids, and the top-1 minus top-2 logit of every choice. Nothing ends a text early."""
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        ),
    )
    best = torch.stack([logits[0].float().topk(2).values for logits in output.logits])
    return output.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


def run_drafter(model, target, taps, prompt, anchor):
    """Stages of one block after the prompt."""
    recorder, raw = Recorder(), model.raw if isinstance(model, Drafter) else model.config.to_dict()
    raw = {**raw, **(raw.get("dflash_config") or {})}
    hooks = [recorder.watch("drafter context", model.hidden_norm), recorder.watch("drafter norm", model.norm)]
    hooks += [recorder.watch(f"drafter layer {i}", layer) for i, layer in enumerate(model.layers)]
    block = [anchor, *[raw["mask_token_id"]] * (raw["block_size"] - 1)]
    embedded = target.get_input_embeddings()(torch.tensor([block], device=target.device))
    embedded = embedded * (raw.get("input_embedding_scale") or 1.0)
    positions = torch.arange(len(prompt) + len(block), device=target.device)[None]
    hidden = model(position_ids=positions, noise_embedding=embedded, target_hidden=taps[None])
    logits = target.lm_head(hidden[0, 1:]).float() * (raw.get("output_multiplier") or 1.0)
    cap = raw.get("final_logit_softcapping")
    for hook in hooks:
        hook.remove()
    return recorder.kept | {"draft logits": cap * torch.tanh(logits / cap) if cap else logits}


def run_prompt(target, drafter, prompt, request):
    """Every stage of one prompt, in the order of the pipeline."""
    causal = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    stages = run_target(target, prompt, list(range(len(prompt))), causal)
    ids, gaps = greedy(target, prompt, request["new_tokens"])
    if drafter is not None:
        taps = torch.cat([stages[f"layer {index}"] for index in drafter.target_layer_ids], dim=-1)
        stages["taps"] = taps
        stages |= run_drafter(drafter, target, taps, prompt, ids[0])
        log_probs = stages["draft logits"].log_softmax(-1).cpu()
        tokens, parents = best_tree(log_probs, request["budget"], request["topk"])
        stages["tree tokens"], stages["tree parents"] = torch.tensor(tokens), torch.tensor(parents)
        stages["verify logits"] = verify(target, prompt, ids[0], tokens, parents)
    stages["greedy ids"], stages["greedy gaps"] = torch.tensor(ids), torch.tensor(gaps)
    return stages


def verify(target, prompt, anchor, tokens, parents):
    """Logits of the root and the nodes, each seeing the prompt, its ancestors and itself."""
    slots = 1 + len(tokens)
    block, depth = torch.eye(slots, dtype=torch.bool), [0] * slots
    for slot, parent in enumerate(parents, 1):
        block[slot] |= block[parent]
        depth[slot] = depth[parent] + 1
    size = len(prompt)
    seen = torch.ones(size + slots, size + slots, dtype=torch.bool).tril()
    seen[size:, size:] = block
    positions = [*range(size), *(size + d for d in depth)]
    return run_target(target, [*prompt, anchor, *tokens], positions, seen)["logits"][size:]


def main(request_file, out_file):
    request = json.loads(Path(request_file).read_text())
    dtype, device = getattr(torch, request["dtype"]), torch.device(request["device"])
    torch.set_float32_matmul_precision("highest")
    target = load_target(request["target"], dtype, device)
    drafter, source = None, "none"
    if request["drafter"] is not None:
        drafter, source = load_drafter(request["drafter"], dtype, device)
    arrays = {}
    with torch.inference_mode():
        for number, prompt in enumerate(request["prompts"]):
            print(f"PyTorch: prompt {number + 1} of {len(request['prompts'])}", file=sys.stderr, flush=True)
            for name, value in run_prompt(target, drafter, prompt, request).items():
                value = value.float() if value.is_floating_point() else value.int()
                arrays[f"{number}/{name}"] = value.cpu().clone().contiguous()
    about = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "target_class": type(target).__name__,
        "drafter_code": source,
    }
    save_file(arrays, out_file, metadata=about)


if __name__ == "__main__":
    main(*sys.argv[1:])
