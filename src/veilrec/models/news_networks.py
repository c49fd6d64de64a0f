"""The networks of news recommendation that are compared.

First those in which a user has a vector of the same space as the news; then those that read the history anew for every
candidate. Where one differs from its paper, its docstring says how.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from veilrec.models.news_model import (
    EMBEDDING_SPREAD,
    AdditiveAttention,
    CnnEncoder,
    Gru,
    MultiHeadPooling,
    MultiHeadUsers,
    NewsInput,
    NewsModel,
    NewsShape,
    NewsSizes,
    PersonalAttention,
    WordCnn,
    latest,
    masked_mean,
    masked_softmax,
)


class Nrms(MultiHeadUsers, NewsModel):
    """NRMS: multi-head self-attention over the words of titles, and again over clicks (Wu et al., EMNLP 2019)."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = MultiHeadPooling(sizes.word_dim, sizes)
        self.clicks = MultiHeadPooling(sizes.dim, sizes)

    def encode_news(self, news: NewsInput) -> Tensor:
        """Title vectors."""
        encoded: Tensor = self.title(self.dropout(self.words(news.title)), news.title > 0)
        return encoded


class Naml(NewsModel):
    """NAML: title, abstract, category and subcategory as views that attention joins (Wu et al., IJCAI 2019).

    A view that is empty (a news without abstract) is left out of the attention.
    """

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = CnnEncoder(sizes, sizes.dim)
        self.abstract = CnnEncoder(sizes, sizes.dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.category = nn.Linear(sizes.category_dim, sizes.dim)
        self.subcategory = nn.Linear(sizes.category_dim, sizes.dim)
        self.views = AdditiveAttention(sizes.dim, sizes.attention)
        self.clicks = AdditiveAttention(sizes.dim, sizes.attention)

    def encode_news(self, news: NewsInput) -> Tensor:
        """One vector of all views."""
        title_mask, abstract_mask = news.title > 0, news.abstract > 0
        views = torch.stack(
            [
                self.title(self.words(news.title), title_mask),
                self.abstract(self.words(news.abstract), abstract_mask),
                self.category(self.categories(news.category)).relu(),
                self.subcategory(self.subcategories(news.subcategory)).relu(),
            ],
            1,
        )  # [n, 4, dim]
        always = torch.ones_like(news.category, dtype=torch.bool)
        there = torch.stack([title_mask.any(-1), abstract_mask.any(-1), always, always], 1)
        encoded: Tensor = self.views(views, there)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Attention over clicks."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded


class Lstur(NewsModel):
    """LSTUR: long- and short-term interests (An et al., ACL 2019), without user ids.

    The paper's long-term part is a vector per user id, which nobody outside the training has and no server should hold.
    Here it is attention over the whole history; the short-term part is the paper's GRU over recent clicks.
    ini: the long-term vector starts the GRU; con: both vectors side by side, as wide as a news vector.
    """

    def __init__(self, sizes: NewsSizes, shape: NewsShape, join: Literal["ini", "con"] = "ini") -> None:
        super().__init__(sizes, dim=sizes.dim + 2 * sizes.category_dim)
        self.join = join
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = CnnEncoder(sizes, sizes.dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.long_term = AdditiveAttention(self.dim, sizes.attention)
        self.short_term = Gru(self.dim, self.dim if join == "ini" else self.dim // 2)
        self.narrow = nn.Linear(self.dim, self.dim - self.dim // 2) if join == "con" else nn.Identity()

    def encode_news(self, news: NewsInput) -> Tensor:
        """Title, category and subcategory side by side."""
        title = self.title(self.words(news.title), news.title > 0)
        return torch.cat([title, self.categories(news.category), self.subcategories(news.subcategory)], -1)

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Both interests."""
        long_term = self.narrow(self.long_term(history, mask))
        recent, real = latest(history, mask, self.sizes.recent)
        if self.join == "ini":
            last: Tensor = self.short_term(recent, real, long_term)[:, -1]
            return last
        return torch.cat([long_term, self.short_term(recent, real)[:, -1]], -1)


class Ebnr(NewsModel):
    """EBNR: a vector per news from the bag of words of its title, a GRU over clicks (Okura et al., KDD 2017).

    The paper pre-trains the news part as a denoising autoencoder; here it learns from the clicks with the rest.
    """

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = nn.Linear(sizes.word_dim, sizes.dim)
        self.clicks = Gru(sizes.dim, sizes.dim)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The mean word through one layer."""
        mean = masked_mean(self.dropout(self.words(news.title)), news.title > 0)
        encoded: Tensor = self.dropout(self.title(mean).tanh())
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """The state after the last click."""
        last: Tensor = self.clicks(history, mask)[:, -1]
        return last


class PlmNr(MultiHeadUsers, NewsModel):
    """A layer over the sentence vector; NRMS's user model over it."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.title = nn.Linear(shape.sentence_dim, sizes.dim)
        self.clicks = MultiHeadPooling(sizes.dim, sizes)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The projected sentence."""
        encoded: Tensor = self.title(self.dropout(news.sentence))
        return encoded


class SentenceHead(NewsModel):
    """PLM-NR with a frozen language model: a layer over the sentence vector, and NRMS's user model over it.

    Sentence vectors are public and fixed; what is learned is small.
    """

    START_SCALE, START_BONUS = 5.0, 0.3

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, dim=shape.sentence_dim + shape.categories + shape.subcategories)
        self.n_categories, self.n_subcategories = shape.categories, shape.subcategories
        self.down = nn.Linear(shape.sentence_dim, sizes.attention, bias=False)
        self.up = nn.Linear(sizes.attention, shape.sentence_dim, bias=False)
        self.clicks = AdditiveAttention(self.dim, sizes.attention)
        self.scale = nn.Parameter(torch.zeros(1))
        self.bonus = nn.Parameter(torch.zeros(2))  # of the category and of the subcategory

    def start(self, generator: torch.Generator) -> None:
        """The cosine with the mean."""
        super().start(generator)
        with torch.no_grad():
            for weight in (self.up.weight, self.clicks.query.weight, self.newcomer):
                weight.zero_()
            self.scale.fill_(self.START_SCALE)
            self.bonus.fill_(self.START_BONUS)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The sentence in the changed space, and the categories as unit vectors."""
        sentence = news.sentence + self.up(self.down(self.dropout(news.sentence)))
        category = unit_vectors(news.category, self.n_categories, sentence.dtype) * self.bonus[0]
        subcategory = unit_vectors(news.subcategory, self.n_subcategories, sentence.dtype) * self.bonus[1]
        return torch.cat([sentence, category, subcategory], -1)

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Attention over clicks."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded * self.scale


def unit_vectors(codes: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[n] -> [n, count]; zero for padding and the unknown, whose codes are 0 and 1."""
    known = codes.unsqueeze(-1) > 1
    return ((codes.unsqueeze(-1) == torch.arange(count)) & known).to(dtype)


class Npa(NewsModel):
    """NPA: attention over words and clicks whose query is the user's own (Wu et al., KDD 2019), without user ids.

    The paper makes the query from a vector per user id; here from the mean of the clicked news, each pooled evenly.
    Word weights differ between users, so a news has no vector of its own: its state keeps the vectors of its words,
    [words, dim + 1], the last entry 1 for a real word.
    """

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.cnn = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.interest = nn.Linear(sizes.dim, sizes.dim)
        self.word_query = nn.Linear(sizes.dim, sizes.attention)
        self.click_query = nn.Linear(sizes.dim, sizes.attention)
        self.word_attention = PersonalAttention(sizes.dim, sizes.attention)
        self.click_attention = PersonalAttention(sizes.dim, sizes.attention)

    def encode_news(self, news: NewsInput) -> Tensor:
        """Contextual word vectors."""
        mask = news.title > 0
        convolved = self.dropout(self.cnn(self.dropout(self.words(news.title)), mask))
        return torch.cat([convolved, mask.unsqueeze(-1).to(convolved.dtype)], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Pool words, then clicks, by the user's queries; then the dot product."""
        plain = masked_mean(history[..., :-1], history[..., -1] > 0)  # [b, h, dim]
        interest = self.interest(masked_mean(plain, mask)).relu()
        word_query = self.word_query(interest).unsqueeze(1)  # [b, 1, attention]
        clicked = self.word_attention(history[..., :-1], history[..., -1] > 0, word_query)
        offered = self.word_attention(candidates[..., :-1], candidates[..., -1] > 0, word_query)
        user = self.click_attention(clicked, mask, self.click_query(interest))
        scores: Tensor = (offered @ user.unsqueeze(-1)).squeeze(-1)
        return scores


class KnowledgeCnn(nn.Module):
    """KCNN: words and entities as channels of one convolution, the largest value over the words."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.entities = nn.Embedding(shape.entities, shape.entity_dim)
        self.to_words = nn.Linear(shape.entity_dim, sizes.word_dim)  # from the entities' space
        self.cnn = WordCnn(2 * sizes.word_dim, sizes.dim, sizes.window)

    def forward(self, news: NewsInput) -> Tensor:
        """[n, dim]."""
        mask = news.title > 0
        known = (news.entities > 0).unsqueeze(-1)
        entities = self.to_words(self.entities(news.entities)).tanh() * known
        convolved: Tensor = self.cnn(torch.cat([self.words(news.title), entities], -1), mask)
        return convolved.amax(1)  # after ReLU padding is 0, the least value there is


class Dkn(NewsModel):
    """DKN: a CNN over words and their entities, candidate-aware attention over clicks (Wang et al., WWW 2018).

    The network that scores a candidate sees, besides it and the user, their product: likeness is then easy to learn.
    """

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.news = KnowledgeCnn(sizes, shape)
        self.of_click = nn.Linear(sizes.dim, sizes.attention)  # the attention network's first layer, in two parts
        self.of_candidate = nn.Linear(sizes.dim, sizes.attention, bias=False)
        self.weigh = nn.Linear(sizes.attention, 1)
        self.click = nn.Sequential(nn.Linear(3 * sizes.dim, sizes.dim), nn.ReLU(), nn.Linear(sizes.dim, 1))

    def encode_news(self, news: NewsInput) -> Tensor:
        """KCNN."""
        encoded: Tensor = self.dropout(self.news(news))
        return encoded

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """A network over each candidate and the clicks that it attends to."""
        hidden = self.of_click(history).unsqueeze(1) + self.of_candidate(candidates).unsqueeze(2)
        weights = masked_softmax(self.weigh(hidden.relu()).squeeze(-1), mask.unsqueeze(1))  # [b, c, h]
        users = weights @ history  # [b, c, dim]
        scores: Tensor = self.click(torch.cat([users, candidates, users * candidates], -1)).squeeze(-1)
        return scores


class Dan(NewsModel):
    """DAN: CNNs over title and entities, attention over clicks beside a recurrent net (Zhu et al., AAAI 2019).

    A GRU takes the place of the paper's LSTM, and a scaled dot product that of the cosine: vectors pooled from ReLUs
    point nearly the same way to begin with, and their cosines hardly learn.
    """

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.entities = nn.Embedding(shape.entities, shape.entity_dim)
        self.title = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.entity = WordCnn(shape.entity_dim, sizes.dim, sizes.window)
        self.join = nn.Linear(2 * sizes.dim, sizes.dim)
        self.sequence = Gru(sizes.dim, sizes.dim)
        self.query = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.taste = nn.Linear(2 * sizes.dim, sizes.dim)

    def start(self, generator: torch.Generator) -> None:
        """A candidate asks for clicks like itself, and is scored by its likeness to what it finds."""
        super().start(generator)
        with torch.no_grad():
            same = torch.eye(self.dim)
            self.query.weight.copy_(same)
            self.taste.weight.copy_(torch.cat([same, same], 1))

    def encode_news(self, news: NewsInput) -> Tensor:
        """Both CNNs, the largest value over the words, joined by a layer."""
        mask = news.title > 0
        title = self.title(self.dropout(self.words(news.title)), mask).amax(1)
        entity = self.entity(self.entities(news.entities), news.entities > 0).amax(1)
        joined: Tensor = self.join(self.dropout(torch.cat([title, entity], -1)))
        return joined

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Interests and their sequence, both attended to by the candidate."""
        states = self.sequence(history, mask)  # [b, h, dim]
        asked = self.query(candidates) / self.dim**0.5  # [b, c, dim]
        there = mask.unsqueeze(1)
        interest = masked_softmax(asked @ history.transpose(1, 2), there) @ history
        sequence = masked_softmax(asked @ states.transpose(1, 2), there) @ states
        users = self.taste(torch.cat([interest, sequence], -1))
        scores: Tensor = (users * candidates).sum(-1) / self.dim**0.5
        return scores


class Fm(NewsModel):
    """FM: factorisation machine over words, category and subcategory of candidate and clicks (Rendle 2012).

    Features of a candidate have weight 1 (words 1 / their number), those of the history the mean over its clicks. Pairs
    of two user features are the same for all candidates and are left out. State of a news: the sum of its vectors as a
    candidate, that as a click, and its score on its own.
    """

    is_dot_product = False
    SPREAD = 0.1  # standard deviation of starting vectors

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        fields = (shape.words, shape.categories, shape.subcategories)
        self.as_candidate = nn.ModuleList(nn.Embedding(n, sizes.dim) for n in fields)
        self.as_click = nn.ModuleList(nn.Embedding(n, sizes.dim) for n in fields)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in fields)

    def start(self, generator: torch.Generator) -> None:
        """Pairs of many vectors add up, so that these start small (Rendle: 0.1)."""
        super().start(generator)
        with torch.no_grad():
            for table in (*self.as_candidate, *self.as_click, *self.weights):
                table.weight.mul_(self.SPREAD / EMBEDDING_SPREAD)

    def _fields(self, tables: nn.ModuleList, news: NewsInput) -> Tensor:
        words, categories, subcategories = tables
        mean = masked_mean(words(news.title), news.title > 0)
        return torch.stack([mean, categories(news.category), subcategories(news.subcategory)], 1)

    def encode_news(self, news: NewsInput) -> Tensor:
        """[n, 2 dim + 1]."""
        offered = self._fields(self.as_candidate, news)  # [n, 3, dim]
        total = offered.sum(1)
        pairs = (total.square() - offered.square().sum(1)).sum(-1, keepdim=True) / 2
        alone = self._fields(self.weights, news).sum(1) + pairs
        return torch.cat([total, self._fields(self.as_click, news).sum(1), alone], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """The candidate alone, and its pairs with the user's features."""
        user = masked_mean(history[..., self.dim : 2 * self.dim], mask)
        pairs = (candidates[..., : self.dim] @ user.unsqueeze(-1)).squeeze(-1)
        return candidates[..., -1] + pairs


class Dfm(NewsModel):
    """DFM: networks of different depth over the same features, fused by attention (Lian et al., IJCAI 2018).

    Features are words, category and subcategory; the user's are the mean over the clicks.
    """

    is_dot_product = False
    DEPTHS = (1, 2, 3)

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, dim=sizes.word_dim + 2 * sizes.category_dim)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.towers = nn.ModuleList(_tower(3 * self.dim, sizes.dim, depth) for depth in self.DEPTHS)
        self.fuse = AdditiveAttention(sizes.dim, sizes.attention)
        self.click = nn.Linear(sizes.dim, 1)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The features side by side."""
        title = masked_mean(self.words(news.title), news.title > 0)
        return torch.cat([title, self.categories(news.category), self.subcategories(news.subcategory)], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Every tower sees user, candidate and their product."""
        user = masked_mean(history, mask).unsqueeze(1).expand_as(candidates)
        seen = self.dropout(torch.cat([user, candidates, user * candidates], -1))
        towers = torch.stack([tower(seen) for tower in self.towers], -2)  # [b, c, towers, dim]
        fused = self.fuse(towers, torch.ones(towers.shape[:-1], dtype=torch.bool))
        scores: Tensor = self.click(fused).squeeze(-1)
        return scores


def _tower(width: int, dim: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(dim if number else width, dim), nn.ReLU()]
    return nn.Sequential(*layers)
