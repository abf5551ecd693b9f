"""Four tiny tokenizers, trained offline on the sentences below: one per kind that people bring.

Their vocabularies are small, so that most words are cut into pieces, and the same on every machine.
"""

import math
from collections import Counter
from functools import lru_cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from retrieval_pretraining.tokenizer_training import train_tokenizer

ENGLISH = """
The cat sat on the mat and looked at the moon.
A dog is chasing the cat through the garden.
Tom is chasing Jerry around the kitchen table.
Jerry is chasing Tom back to the kitchen door.
The permanent magnet motor runs without a sensor.
Sensorless control of a motor needs a good model.
A language model predicts the next word of a text.
Masked language models predict words that are hidden.
An encoder turns a sentence into a single vector.
The decoder rebuilds the sentence from that vector.
Search engines rank documents for a given query.
Dense retrieval compares vectors instead of words.
The query and the document meet in one vector space.
Contrastive learning pulls related sentences together.
Unrelated sentences are pushed apart by the same loss.
Pre-training on raw text costs hours, not labels.
Fine-tuning needs pairs of questions and answers.
How do I reset the password of my account?
My card was declined when I tried to pay abroad.
Why is the transfer still pending after three days?
Please tell me the exchange rate for euros.
Water boils at lower temperature on high mountains.
The boundary layer of a wing becomes turbulent.
Heat flows from the warm wall to the cold air.
Supersonic flow past a thin wing has a shock wave.
Vaccines train the immune system against a virus.
The protein binds to the receptor of the cell.
Mice without this gene gain weight more slowly.
BERT v2.0 <base> [large] / MASK, SEP, CLS: see p. 134, 56-78_9.
The train leaves the station at half past seven.
""".strip().splitlines()

CHINESE = """
今天天气很好，我们去公园散步。
使用语言模型来预测下一个词。
永磁同步电机控制需要准确的模型。
无传感器控制可以降低电机的成本。
预训练语言模型需要大量的文本。
编码器把一个句子变成一个向量。
解码器根据这个向量重建句子。
搜索引擎根据查询给文档排序。
稠密检索比较向量而不是词语。
对比学习把相关的句子拉近。
同一个损失把无关的句子推远。
微调需要问题和答案的配对。
怎样重置我的账户密码？
我在国外付款的时候银行卡被拒绝了。
转账为什么三天以后还没有到账？
请告诉我今天欧元的汇率。
水在高山上沸腾的温度比较低。
机翼的边界层会变成湍流。
热量从温暖的墙流向寒冷的空气。
疫苗训练免疫系统对抗病毒。
这种蛋白质与细胞的受体结合。
没有这个基因的老鼠体重增加得更慢。
城市的旧地图上有一条河和两座桥。
火车七点半从车站出发。
窗前月色明亮，地上好像有白霜。
抬头看月亮，低头想念家乡。
小猫在垫子上看着月亮。
一只狗在花园里追小猫。
北京大学的学生在图书馆看书。
开源软件的许可证写在文件里。
""".strip().splitlines()

SENTENCES = [sentence for pair in zip(ENGLISH, CHINESE, strict=True) for sentence in pair]
_ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@lru_cache
def bert_tokenizer() -> BertTokenizerFast:
    """WordPiece, lower case: "##" pieces, Han characters one by one. [PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4."""
    return train_tokenizer(SENTENCES, vocab_size=700)


@lru_cache
def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: a space is part of the word after it, most Han characters are two or three tokens."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=_ROBERTA_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(SENTENCES, trainer)
    trained.decoder = decoders.ByteLevel()
    return _finish(trained, processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False))


@lru_cache
def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """Unigram over metaspaces, like XLM-R: a Chinese sentence is one "word", pieces hold several characters."""
    trained = Tokenizer(models.Unigram(_unigram_vocabulary(_ROBERTA_SPECIALS), unk_id=3))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.decoder = decoders.Metaspace()
    template = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _finish(trained, template)


@lru_cache
def t5_tokenizer() -> PreTrainedTokenizerFast:
    """The same pieces as T5 has them: <pad> </s> <unk> are 0 to 2, a text ends with </s>, and the 20 sentinels are the
    last ids, <extra_id_0> the very last."""
    sentinels = [f"<extra_id_{number}>" for number in range(20)]
    vocabulary = _unigram_vocabulary(["<pad>", "</s>", "<unk>"]) + [(token, 0.0) for token in reversed(sentinels)]
    trained = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.decoder = decoders.Metaspace()
    trained.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens=sentinels,
        model_input_names=["input_ids", "attention_mask"],
    )


def _unigram_vocabulary(specials: list[str]) -> list[tuple[str, float]]:
    # The trainer of `tokenizers` gives another vocabulary on each run, so pieces and scores are counted here.
    counts = Counter()
    for word in " ".join(SENTENCES).split(" "):
        word = "\u2581" + word
        counts.update(word[i:j] for i in range(len(word)) for j in range(i + 1, min(i + 4, len(word)) + 1))
    ranked = sorted(counts, key=lambda piece: (len(piece) > 1, -counts[piece], piece))
    total = counts.total()
    vocabulary = [(piece, 0.0) for piece in specials]
    return vocabulary + [(piece, math.log(counts[piece] / total)) for piece in ranked[:700]]


def _finish(trained: Tokenizer, post_processor) -> PreTrainedTokenizerFast:
    trained.post_processor = post_processor
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )
