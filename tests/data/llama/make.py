"""Writes the tiny random Llama models beside this file, and what transformers makes of them in float32.

Run where torch and transformers are installed (made with torch 2.13.0, transformers 5.24.0):
python tests/data/llama/make.py
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
VARIANTS = {
    # head_dim is not hidden_size / heads; every linear layer has a bias; the head is the embedding.
    "biases": COMMON
    | {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama3": COMMON
    | {
        "head_dim": 8,
        "rope_parameters": ROPE
        | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "yarn": COMMON | {"head_dim": 8, "rope_parameters": ROPE | {"rope_type": "yarn", "factor": 8.0}},
}
LENGTHS, NEW = (3, 40, 150), 24


def random_model(values: dict, seed: int) -> transformers.LlamaForCausalLM:
    """A model whose weights are exact in bfloat16."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values, eos_token_id=None))
    for path, parameter in model.named_parameters():
        if parameter.ndim == 2:
            # Quiet embeddings: else a tied model repeats its last token for ever.
            std = 0.3 if "embed" in path else 1.5 * parameter.shape[1] ** -0.5
            torch.nn.init.normal_(parameter, std=std)
        elif path.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        # The parameters alone: rounding the whole model would round its rotary frequencies too.
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model


def greedy_runs(model: transformers.LlamaForCausalLM) -> list[dict] | None:
    """A greedy text after a prompt of each length; None where one nearly ties or loops."""
    runs = []
    for length in LENGTHS:
        prompt = torch.randint(0, 64, (1, length))
        result = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),  # else a 0 in the prompt counts as padding
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logits = torch.stack(result.logits)[:, 0]
        best = logits.topk(2).values
        text = result.sequences[0, length:].tolist()
        if (best[:, 0] - best[:, 1]).min() < 1e-3 or len(set(text)) < 5:
            return None
        runs.append({"prompt": prompt[0].tolist(), "output": text, "last_logits": logits[-1].tolist()})
    return runs


def main() -> None:
    for name, values in VARIANTS.items():
        runs, seed = None, -1
        while runs is None:
            seed += 1
            model = random_model(values, seed)
            runs = greedy_runs(model)
        folder = Path(__file__).parent / name
        folder.mkdir(exist_ok=True)
        weights = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()}
        if values.get("tie_word_embeddings"):
            del weights["lm_head.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        model.config.architectures = ["LlamaForCausalLM"]
        (folder / "config.json").write_text(json.dumps(model.config.to_diff_dict(), indent=2) + "\n")
        (folder / "runs.json").write_text(json.dumps(runs) + "\n")


if __name__ == "__main__":
    main()
