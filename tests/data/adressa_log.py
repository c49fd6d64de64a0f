"""A small log in Adressa's format: readers with a taste, articles with words of their topic, a file a day."""

import json

import numpy as np

FIRST_DAY = 1_483_228_800  # 2017-01-01 00:00 UTC
DAY = 86_400
TOPICS = {
    "nyheter|trondheim": "bro vei kommune trafikk sentrum åpner stenger ny plan vedtak",
    "sport|fotball": "kamp mål seier tap serie trener lag spiller cup drakt",
    "kultur|musikk": "konsert album scene band festival kor orkester låt turné gitar",
    "meninger": "leserbrev debatt svar kritikk mener bør feil rett valg parti",
}


def write_log(folder, *, readers=60, articles=120, days=4, seed=1):
    """Write a folder with files like 20170101; every reader opens some articles of the day, mostly of one topic."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, len(TOPICS), articles)
    names, words = list(TOPICS), [text.split() for text in TOPICS.values()]
    titles = [" ".join(rng.choice(words[topic], rng.integers(3, 7))) for topic in topics]
    published = np.sort(rng.integers(0, days, articles))
    folder.mkdir(parents=True)
    for day in range(days):
        events = []
        for reader in range(readers):
            for _ in range(rng.integers(1, 5)):
                fresh = np.flatnonzero((published <= day) & (published >= day - 1))
                liked = fresh[topics[fresh] == reader % len(TOPICS)]
                article = int(rng.choice(liked if len(liked) and rng.random() < 0.8 else fresh))
                about = {"id": f"a{article}", "title": titles[article], "category1": names[topics[article]]}
                events.append(_event(reader, day, rng) | about)
            events.append(_event(reader, day, rng))  # a visit of the front page
        lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
        (folder / f"201701{day + 1:02}").write_text(lines)
    return folder


def _event(reader, day, rng):
    time = FIRST_DAY + day * DAY + int(rng.integers(0, DAY))
    return {"eventId": time, "userId": f"cx:{reader}", "time": time, "url": "http://adressa.no"}
