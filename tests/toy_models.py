"""Toy configurations and models of every supported backbone: hidden size 32, 2 layers, vocabulary 99."""

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from configuration_gur import GURConfig
from configuration_retromae import RetroMAEConfig

_SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BEHIND_PADDING = {"pad_token_id": 1, "max_position_embeddings": 66}

BACKBONE_CONFIGS = {
    "bert": {**_SIZES, **_NO_DROPOUT},
    "roberta": {**_SIZES, **_NO_DROPOUT, **_BEHIND_PADDING},
    "xlm-roberta": {**_SIZES, **_NO_DROPOUT, **_BEHIND_PADDING},
    "distilbert": {
        **{name: _SIZES[name] for name in ("vocab_size", "max_position_embeddings", "pad_token_id")},
        **{"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "dropout": 0.0, "attention_dropout": 0.0},
    },
    "electra": {**_SIZES, **_NO_DROPOUT, "embedding_size": 16},
    "albert": {**_SIZES, **_NO_DROPOUT, "embedding_size": 16, "inner_group_num": 1, "num_hidden_groups": 1},
    "deberta-v2": {
        **{**_SIZES, **_NO_DROPOUT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        **{"position_biased_input": False, "position_buckets": 16, "type_vocab_size": 0, "share_att_key": True},
    },
    "mpnet": {**_SIZES, **_NO_DROPOUT, **_BEHIND_PADDING},
    "modernbert": {
        **_SIZES,
        **{"global_attn_every_n_layers": 2, "local_attention": 16, "cls_token_id": 2, "sep_token_id": 3},
        **{"bos_token_id": 2, "eos_token_id": 3, "attention_dropout": 0.0, "mlp_dropout": 0.0},
    },
}


def encoder_config(model_type: str = "bert", **changes):
    return AutoConfig.for_model(model_type, **{**BACKBONE_CONFIGS[model_type], **changes})


def retromae_config(model_type: str = "bert", **changes) -> RetroMAEConfig:
    return RetroMAEConfig(encoder_config=encoder_config(model_type), **changes)


def toy_batch(
    *, lengths=(16, 12, 9, 5), vocab_size: int = 99, pad_token_id: int = 0, bag: bool = False, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A batch as the collator makes it, drawn independently of it: [CLS]=2, [SEP]=3, [MASK]=4, words from 10 up."""
    generator = torch.Generator().manual_seed(seed)
    batch_size, length = len(lengths), max(lengths)
    ids = torch.randint(10, vocab_size, (batch_size, length), generator=generator)
    position = torch.arange(length)
    real = position < torch.tensor(lengths)[:, None]
    content = real & (position > 0) & (position < torch.tensor(lengths)[:, None] - 1)
    ids[:, 0] = 2
    ids[torch.arange(batch_size), torch.tensor(lengths) - 1] = 3
    ids[~real] = pad_token_id
    masked = (torch.rand(ids.shape, generator=generator) < 0.3) & content
    masked[:, 1] = content[:, 1]
    visible = (torch.rand(batch_size, length, length, generator=generator) < 0.5) | (position == 0)
    visible &= real[:, None, :] & real[:, :, None] & ~torch.eye(length, dtype=torch.bool)
    batch = {
        "input_ids": torch.where(masked, 4, ids),
        "attention_mask": real.long(),
        "labels": torch.where(masked, ids, -100),
        "decoder_input_ids": ids,
        "decoder_attention_mask": visible,
        "decoder_labels": torch.where(content, ids, -100),
    }
    if bag:
        present = torch.zeros(batch_size, vocab_size).scatter_(1, torch.where(content, ids, 0), 1.0)
        present[:, 0] = 0.0
        batch["bag_of_words"] = present / content.sum(1, keepdim=True)
    return batch


_T5_SIZES = {
    **{"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0},
    **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}

# Each kind of T5: `untied` means an LM head of its own, and decoder states that are not scaled before it.
T5_KINDS = {
    "t5": {"model_type": "t5", "feed_forward_proj": "relu", "untied": False},
    "t5_v1_1": {"model_type": "t5", "feed_forward_proj": "gated-gelu", "untied": True},
    "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "untied": True},
    "mt5_tied": {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "untied": False},
    "umt5": {"model_type": "umt5", "feed_forward_proj": "gated-gelu", "untied": False},
    "umt5_untied": {"model_type": "umt5", "feed_forward_proj": "gated-gelu", "untied": True},
}


def gur_config(**changes) -> GURConfig:
    return GURConfig(**{**_T5_SIZES, "projection_dim": 16, **changes})


def toy_t5(kind: str = "t5", *, seed: int = 0):
    """A plain T5, mT5 or UMT5 for conditional generation, whose weights are all different."""
    row = T5_KINDS[kind]
    sizes = {**_T5_SIZES, "feed_forward_proj": row["feed_forward_proj"], "tie_word_embeddings": not row["untied"]}
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(row["model_type"], **sizes))
    if row["untied"]:
        model.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn_like(model.lm_head.weight))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def gur_batch(*, lengths=(12, 9, 12, 5, 7, 3), left: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Pairs as the collator makes them, drawn independently of it: </s>=1, sentinels 98 and down, words from 10 up."""
    generator = torch.Generator().manual_seed(seed)
    length = max(lengths)
    ids = torch.randint(10, 90, (len(lengths), length), generator=generator)
    labels = torch.randint(10, 90, (len(lengths), 6), generator=generator)
    lengths_B1 = torch.tensor(lengths)[:, None]
    ids.scatter_(1, lengths_B1 - 1, 1)
    ids[:, 1], labels[:, 0], labels[:, 3] = 98, 98, 1
    real = torch.arange(length) < lengths_B1
    ids[~real] = 0
    labels[1::2, 4:] = -100
    mask = real.long()
    if left:
        ids = torch.stack([row.roll(length - n) for row, n in zip(ids, lengths)])
        mask = mask.flip(1)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
