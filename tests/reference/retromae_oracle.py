"""The slow, textbook RetroMAE and DupMAE: what the fast model is tested and benchmarked against.

Every step is written out: scores [B, heads, L, L], logits [B, L, V] at every position, mean cross-entropy over
whatever carries a label. No fused attention, no selection of positions, no chunks. Only the embeddings and the MLM
head of `BertForMaskedLM` are called as modules; its encoder layers lend their weights to `bert_layer` below.

Shape suffixes: B texts, L tokens, H hidden size, V vocabulary.

Sources, in our own words (no code is copied):

- RetroMAE, arXiv 2205.12035, sections "Encoding", "Decoding" and "Enhanced Decoding" (H1, H2, the mask M).
- DupMAE / RetroMAE-2, arXiv 2211.08769: the bag-of-words task on the ordinary tokens.
- The published implementations (staoxiao/RetroMAE, FlagEmbedding), whose numbers are in `tests/golden`.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

DECODER_QUERIES = ("position", "embedding")


def bert_layer(layer, query_BLH, context_BLH, visible, config):
    """One post-norm BERT layer: attention, residual from the query, layer norm, feed-forward, residual, layer norm.

    Args:
        layer: any module with the parameter names of transformers' `BertLayer`.
        query_BLH: queries, and the residual.
        context_BLH: keys and values; the same tensor as `query_BLH` for self-attention.
        visible: [B, L or 1, L], nonzero where a row may look at a column.
        config: the `BertConfig`.

    Returns:
        hidden states [B, L, H].

    A row that sees nothing (padding) has one same very low score everywhere, hence attends uniformly: no NaN, and
    no meaning, as in the published code.
    """
    batch_size, length, hidden_size = query_BLH.shape
    heads = config.num_attention_heads
    head_size = hidden_size // heads

    def split(states):  # [B, L, H] -> [B, heads, L, H / heads]
        return states.reshape(batch_size, -1, heads, head_size).transpose(1, 2)

    def dropout(states, probability):
        return F.dropout(states, probability, training=layer.training)

    projections = layer.attention.self
    q = split(projections.query(query_BLH))
    k = split(projections.key(context_BLH))
    v = split(projections.value(context_BLH))

    scores = q @ k.transpose(-1, -2) / math.sqrt(head_size)
    hidden_pairs = (visible == 0)[:, None]
    scores = scores.masked_fill(hidden_pairs, torch.finfo(scores.dtype).min)
    weights = dropout(scores.softmax(dim=-1), config.attention_probs_dropout_prob)
    attended_BLH = (weights @ v).transpose(1, 2).reshape(batch_size, length, hidden_size)

    attended_BLH = dropout(layer.attention.output.dense(attended_BLH), config.hidden_dropout_prob)
    attended_BLH = layer.attention.output.LayerNorm(attended_BLH + query_BLH)

    inner = F.gelu(layer.intermediate.dense(attended_BLH))
    output_BLH = dropout(layer.output.dense(inner), config.hidden_dropout_prob)
    return layer.output.LayerNorm(output_BLH + attended_BLH)


def make_layer(config):
    """A fresh layer with `BertLayer`'s parameter names: normal weights, zero biases, unit layer norms."""
    size, inner_size, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps

    def part(**modules):
        holder = nn.Module()
        for name, module in modules.items():
            holder.add_module(name, module)
        return holder

    projections = part(query=nn.Linear(size, size), key=nn.Linear(size, size), value=nn.Linear(size, size))
    attention = part(output=part(dense=nn.Linear(size, size), LayerNorm=nn.LayerNorm(size, eps=eps)))
    attention.add_module("self", projections)
    layer = part(
        attention=attention,
        intermediate=part(dense=nn.Linear(size, inner_size)),
        output=part(dense=nn.Linear(inner_size, size), LayerNorm=nn.LayerNorm(size, eps=eps)),
    )
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=config.initializer_range)
            nn.init.zeros_(module.bias)
    return layer


class RetroMAEOracle(nn.Module):
    """RetroMAE around a `BertForMaskedLM`, spelled out.

    `loss = encoder_mlm_loss + decoder_mlm_loss (+ bow_loss_weight * bag_of_words_loss)`

    Args:
        lm: the `BertForMaskedLM`; its embeddings and MLM head serve encoder and decoder alike. Kept as `self.lm`.
        decoder_query: what H1 is. `"position"`: sentence vector + position embeddings, nothing more (2205.12035
            and staoxiao/RetroMAE). `"embedding"`: the sentence vector sent through the embedding module, that
            is with token type 0, positions, layer norm and dropout (FlagEmbedding, DupMAE).
        enhanced_decoding: `False` is the ablation of 2205.12035 ("Decoding" alone): a plain one-layer transformer
            reads the masked `decoder_input_ids` with the sentence vector in place of the first token, every position
            seeing all that is not padding.
        bow_loss_weight: weight of the bag-of-words loss, used only where `bag_of_words` is given.
    """

    def __init__(self, lm, *, decoder_query="position", enhanced_decoding=True, bow_loss_weight=0.1):
        super().__init__()
        if decoder_query not in DECODER_QUERIES:
            raise ValueError(f"decoder_query is {decoder_query!r}; choose one of {DECODER_QUERIES}.")
        if lm.config.hidden_act != "gelu":
            raise ValueError(f"The oracle writes out gelu only; hidden_act is {lm.config.hidden_act!r}.")
        self.lm = lm
        self.config = lm.config
        self.decoder = nn.Module()
        self.decoder.layer = make_layer(lm.config)
        self.decoder_query = decoder_query
        self.enhanced_decoding = enhanced_decoding
        self.bow_loss_weight = bow_loss_weight

    def encode(self, input_ids, attention_mask):
        """Encoder states [B, L, H]; the first of each text is its sentence vector (2205.12035, "Encoding")."""
        states_BLH = self.lm.bert.embeddings(input_ids=input_ids)
        for layer in self.lm.bert.encoder.layer:
            states_BLH = bert_layer(layer, states_BLH, states_BLH, attention_mask[:, None, :], self.config)
        return states_BLH

    def query_and_context(self, sentence_BH, decoder_input_ids):
        """H1 (query) and H2 (context), both [B, L, H] (2205.12035, "Enhanced Decoding").

        H2 has the **raw** sentence vector at position 0, without position embedding or layer norm; its other
        positions are the ordinary embeddings of the text.
        """
        embeddings = self.lm.bert.embeddings
        length = decoder_input_ids.shape[1]
        sentence_B1H = sentence_BH[:, None, :]

        context_BLH = torch.cat([sentence_B1H, embeddings(input_ids=decoder_input_ids)[:, 1:]], dim=1)
        if not self.enhanced_decoding:
            return context_BLH, context_BLH

        repeated_BLH = sentence_B1H.expand(-1, length, -1)
        if self.decoder_query == "position":
            positions = torch.arange(length, device=decoder_input_ids.device)
            query_BLH = repeated_BLH + embeddings.position_embeddings(positions)
        else:
            query_BLH = embeddings(inputs_embeds=repeated_BLH)
        return query_BLH, context_BLH

    def mlm_loss(self, logits_BLV, labels):
        """Mean cross-entropy over the labelled positions; NaN where a batch has no label at all."""
        return F.cross_entropy(logits_BLV.reshape(-1, logits_BLV.shape[-1]), labels.reshape(-1), ignore_index=-100)

    def bag_of_words_loss(self, logits_BLV, attention_mask, bag_of_words_BV):
        """DupMAE's loss: the encoder's logits, max-pooled over the text, must predict its bag of words.

        `-(bag * log_softmax(max over positions)).sum(-1).mean()`. The positions are all but the first and the
        padding: the final `[SEP]` and the `[MASK]` positions count.
        """
        counted = attention_mask.bool().clone()
        counted[:, 0] = False
        pooled_BV = logits_BLV.masked_fill(~counted[:, :, None], torch.finfo(logits_BLV.dtype).min).amax(dim=1)
        return -(bag_of_words_BV * pooled_BV.log_softmax(dim=-1)).sum(dim=-1).mean()

    def forward(
        self,
        input_ids,
        attention_mask,
        labels,
        decoder_input_ids,
        decoder_attention_mask=None,
        decoder_labels=None,
        bag_of_words=None,
    ):
        """Losses and states of one batch.

        Args:
            input_ids, attention_mask, labels: [B, L], the moderately masked text, 1 where it is not padding, and the
                original id at masked positions (-100 elsewhere).
            decoder_input_ids: [B, L], the unmasked text (the masked one if not `enhanced_decoding`).
            decoder_attention_mask: [B, L, L], bool or int, nonzero where row i may see column j. Unused, and may be
                left out, if not `enhanced_decoding`.
            decoder_labels: [B, L], the original ids, -100 at special tokens and padding.
            bag_of_words: [B, V], the share of each vocabulary entry.

        Returns:
            dict of `loss`, `encoder_mlm_loss`, `decoder_mlm_loss`, `bag_of_words_loss` (None without a bag),
            `sentence_embedding` [B, H], `decoder_hidden_states`, `query`, `context` [B, L, H] (H1 and H2).
        """
        states_BLH = self.encode(input_ids, attention_mask)
        logits_BLV = self.lm.cls(states_BLH)
        encoder_mlm_loss = self.mlm_loss(logits_BLV, labels)

        sentence_BH = states_BLH[:, 0]
        query_BLH, context_BLH = self.query_and_context(sentence_BH, decoder_input_ids)
        visible = decoder_attention_mask if self.enhanced_decoding else attention_mask[:, None, :]
        decoded_BLH = bert_layer(self.decoder.layer, query_BLH, context_BLH, visible, self.config)
        decoder_mlm_loss = self.mlm_loss(self.lm.cls(decoded_BLH), decoder_labels)

        loss = encoder_mlm_loss + decoder_mlm_loss
        bag_of_words_loss = None
        if bag_of_words is not None:
            bag_of_words_loss = self.bag_of_words_loss(logits_BLV, attention_mask, bag_of_words)
            loss = loss + self.bow_loss_weight * bag_of_words_loss

        return {
            "loss": loss,
            "encoder_mlm_loss": encoder_mlm_loss,
            "decoder_mlm_loss": decoder_mlm_loss,
            "bag_of_words_loss": bag_of_words_loss,
            "sentence_embedding": sentence_BH,
            "decoder_hidden_states": decoded_BLH,
            "query": query_BLH,
            "context": context_BLH,
        }
