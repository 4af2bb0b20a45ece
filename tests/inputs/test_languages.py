"""Texts of any language have words: with spaces between them or without, with marks or without."""

import unicodedata

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from murmur.learning.data.tables import table
from murmur.learning.data.tokens import words_of
from murmur.learning.features.components import featured
from murmur.learning.features.maps import words as hashed_words
from tests.fl_app.running import run_inline

# What separates words, then words of everybody, of the first class and of the second.
LANGUAGES = {
    "Chinese": ("", "我们 今天 一个 可以 因为 这里 他们 什么", "会议 议程 报告", "奖金 优惠 点击"),
    "Japanese": ("", "です これ は あの ので して いた 今日", "会議 予定 書類", "賞金 割引 無料"),
    "Thai": ("", "และ ของ ที่นี่ วันนี้ เรา เป็น อยู่ แล้ว", "ประชุม วาระ รายงาน", "รางวัล ส่วนลด คลิก"),
    "Khmer": ("", "និង របស់ នៅ ថ្ងៃនេះ យើង ជា", "ប្រជុំ របៀបវារៈ", "រង្វាន់ បញ្ចុះតម្លៃ"),
    # Words that differ by vowel signs alone.
    "Hindi": (" ", "और यह है आज हम के में", "दिन मेल सुत", "दीन मिल सूत"),
    "Tamil": (" ", "இது ஒரு நாள் நாம் மற்றும்", "கல் பல் நில்", "கால் பால் நீல்"),
}


def texts_of(language, count=400):
    """Sentences of five common words and two of a class, in an order of their own; the classes."""
    between, *parts = LANGUAGES[language]
    common, *own = (part.split() for part in parts)
    rng = np.random.default_rng(0)
    kinds = np.arange(count) % 2
    texts = []
    for kind in kinds:
        words = [*rng.choice(common, 5), *rng.choice(own[kind], 2)]
        texts.append(between.join(rng.permutation(words)))
    return texts, kinds


def write(path, language):
    texts, kinds = texts_of(language)
    pd.DataFrame({"text": texts, "label": kinds}).to_csv(path, index=False)


@pytest.mark.parametrize("language", LANGUAGES)
def test_hashed_words_tell_classes_apart_in_any_language(language, tmp_path):
    write(tmp_path / "x.csv", language)
    data = table(path=str(tmp_path / "x.csv"), text="text", test_fraction=0.5)
    found, _ = featured(data, hashed_words(size=512), np.arange(0), tmp_path / "cache")
    flat = [part.images.reshape(len(part), -1) for part in (found.train, found.test)]
    learned = LogisticRegression(max_iter=1000).fit(flat[0], found.train.labels)
    assert learned.score(flat[1], found.test.labels) > 0.9


def test_a_recurrent_network_reads_a_language_without_spaces(tmp_path):
    write(tmp_path / "x.csv", "Chinese")
    run = run_inline(
        tmp_path / "run",
        *("dataset=table", f"dataset.path={tmp_path / 'x.csv'}", "dataset.text=text"),
        *("dataset.length=20", "features=none", "model=text_lstm", "strategy=fedavg"),
        *("strategy.local.epochs=5", "strategy.local.batch_size=8"),
        "strategy.local.learning_rate=0.5",
        *("federation.num_clients=2", "federation.num_rounds=4", "federation.public=0"),
    )
    assert run.rows()[-1]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The quick_brown fox's 3.5", ["the", "quick_brown", "fox", "s", "3", "5"]),
        ("Naïve ΑΘΗΝΑ Łódź", ["naïve", "αθηνα", "łódź"]),
        ("中文abc测试123", ["中", "文", "abc", "测", "试", "123"]),
        ("これはペンです", ["こ", "れ", "は", "ペン", "で", "す"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("שָׁלוֹם עולם", [unicodedata.normalize("NFC", "שָׁלוֹם"), "עולם"]),
        ("中文,測試。", ["中", "文", "測", "試"]),
        ("😀 !", []),
    ],
)
def test_words_of_a_text(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize("text", ["Café", "Tiếng Việt", "ガギグ", "각", "Ångström"])
def test_both_forms_of_unicode_are_the_same_words(text):
    forms = {form: unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    assert forms["NFC"] != forms["NFD"]
    assert words_of(forms["NFC"]) == words_of(forms["NFD"])


def test_a_text_is_read_by_itself():
    every = [text for language in LANGUAGES for text in texts_of(language, 4)[0]]
    assert [words_of(text) for text in every] == [words_of(text) for text in every[::-1]][::-1]
