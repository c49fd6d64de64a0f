"""The words that made-up news are written with; no word is in two lists, so that each tells one thing."""

from __future__ import annotations

# "lifting" and "dull" words make anybody likelier, or less likely, to click.
_KINDS = {
    "common": (
        "the to of in and for on with at as after new from over how what why this week will says more first "
        "before could into about year today against back best top here again still next every"
    ),
    "lifting": (
        "exclusive shocking stunning revealed dramatic incredible urgent surprising secret viral "
        "unbelievable sensational"
    ),
    "dull": (
        "routine procedural minor unchanged postponed technicality formality tedious ordinary boring footnote trivial"
    ),
}

# Topic -> words that all of its subtopics use; all lists are equally long.
_TOPICS = {
    "politics": (
        "government minister parliament policy leader party opposition debate reform cabinet president law "
        "speech coalition lawmakers republic"
    ),
    "sport": (
        "team coach fans champion stadium season player victory defeat match tournament trophy athlete "
        "injury training final"
    ),
    "money": (
        "economy billion price growth company profit cost dollars quarter customers analysts revenue deal "
        "firm business income"
    ),
    "health": (
        "patients doctors hospital treatment disease symptoms medical risk clinic illness nurse recovery "
        "therapy wellness care healthy"
    ),
    "science": (
        "scientists researchers study discovery laboratory theory experiment evidence professor university "
        "data breakthrough findings journal method analysis"
    ),
    "travel": (
        "tourists trip destination holiday journey visitors guide adventure vacation traveller passport "
        "sightseeing luggage itinerary abroad explore"
    ),
    "culture": (
        "artist audience award star celebrity fame creative premiere debut critics fashion style "
        "masterpiece festival performance entertainment"
    ),
    "food": (
        "taste delicious flavour kitchen ingredients meal chef eat fresh tasty hungry cook dish menu dinner lunch"
    ),
    "cars": (
        "vehicle driver engine wheels driving road motor model dealer horsepower mileage speed brakes "
        "garage tyre steering"
    ),
    "weather": (
        "forecast temperature sky climate degrees meteorologist conditions seasonal outlook morning warning "
        "region overnight northern southern coast"
    ),
}

# Topic -> subtopic -> words of its own; all lists are equally long.
_SUBTOPICS = {
    "politics": {
        "elections": (
            "election vote ballot candidate poll campaign voters primary turnout recount landslide constituency"
        ),
        "diplomacy": (
            "embassy ambassador treaty summit sanctions diplomat foreign ceasefire allies border negotiations alliance"
        ),
        "justice": ("court judge trial lawsuit verdict prosecutor attorney jury supreme appeal ruling constitutional"),
        "defence": ("army military troops soldiers navy missile weapons war general airstrike battalion veterans"),
    },
    "sport": {
        "football": (
            "goal striker goalkeeper league midfielder penalty offside derby kickoff relegation winger defender"
        ),
        "tennis": ("serve racket wimbledon backhand forehand tiebreak volley grandslam baseline deuce singles clay"),
        "cycling": ("cyclist peloton sprint stage bicycle climber saddle pedal breakaway velodrome tandem helmet"),
        "swimming": ("pool swimmer freestyle backstroke butterfly medley relay lane breaststroke diving lap goggles"),
    },
    "money": {
        "markets": "stocks shares index investors trading bonds rally nasdaq dividend hedge equities bull",
        "banking": "bank loan interest mortgage credit lender savings deposit debt account borrowers branch",
        "housing": ("house property rent landlord tenants apartment estate homeowners realtor lease bedroom suburb"),
        "jobs": ("workers wages unemployment hiring salary employer union layoffs strike payroll career pension"),
    },
    "health": {
        "nutrition": (
            "vitamin protein calories obesity diet fibre sugar cholesterol weight metabolism supplements fasting"
        ),
        "fitness": ("workout gym muscles yoga exercise jogging stretching cardio squats treadmill trainer endurance"),
        "mental": (
            "anxiety depression stress therapist sleep mindfulness psychologist burnout loneliness mood "
            "meditation counselling"
        ),
        "infections": (
            "virus vaccine flu outbreak infection epidemic pandemic immunity measles antibodies fever quarantine"
        ),
    },
    "science": {
        "space": ("rocket nasa orbit planet astronaut telescope moon mars satellite galaxy asteroid spacecraft"),
        "animals": ("species wildlife elephant whale birds wolves habitat endangered shark insects mammals zoo"),
        "physics": (
            "quantum particle atom laser gravity electrons neutrino collider magnetic superconductor photon nuclear"
        ),
        "computing": (
            "software computer algorithm robot chip programming internet hackers browser laptop smartphone server"
        ),
    },
    "travel": {
        "beaches": "beach island sand surf lagoon coral resort snorkelling palm tropical sunbathing seaside",
        "cities": ("city museum hotel downtown cathedral skyline subway plaza nightlife hostel boulevard landmark"),
        "mountains": "mountain hiking trail ridge peak ski alpine glacier valley climbing backpack hut",
        "flights": "airline airport flight plane passengers boarding runway pilot cabin delayed terminal jet",
    },
    "culture": {
        "films": ("movie film actor director hollywood cinema oscar screenplay sequel thriller trailer blockbuster"),
        "music": "song album singer concert band guitar rapper melody orchestra drummer lyrics tour",
        "books": ("novel author book publisher poetry writer chapter library bestseller memoir fiction literary"),
        "art": (
            "painting gallery sculpture exhibition canvas curator portrait drawing mural watercolour auction painter"
        ),
    },
    "food": {
        "baking": "bread cake flour oven dough cookies pastry yeast chocolate frosting muffin pie",
        "wine": ("vineyard grapes bottle cellar tasting champagne sommelier vintage chardonnay cork merlot winery"),
        "vegetables": ("salad tomato carrots spinach broccoli vegan potatoes onions cabbage lettuce beans cucumber"),
        "meat": "beef steak chicken barbecue pork grill sausage bacon burger turkey lamb ribs",
    },
    "cars": {
        "electric": ("battery charging electric tesla volt plug charger hybrid kilowatt lithium recharge socket"),
        "racing": ("race overtaking mclaren circuit grandprix pit qualifying podium racer nascar ferrari chequered"),
        "classics": (
            "antique restored collector convertible chrome roadster heirloom cadillac mustang porsche rust oldtimer"
        ),
        "trucks": "truck pickup axle cargo diesel towing lorry freight hauling tractor payload forklift",
    },
    "weather": {
        "storms": "hurricane tornado storm thunder lightning winds gale cyclone hail evacuation surge gusts",
        "snow": "snow blizzard ice frost avalanche freezing winter snowfall sleet snowplough icy cold",
        "heat": ("heatwave drought sunshine hot wildfire scorching summer thermometer humidity sunburn dry blazing"),
        "rain": "rain flood showers umbrella drizzle clouds river puddles monsoon downpour wet rainfall",
    },
}


def _split(lists: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(words.split()) for name, words in lists.items()}


COMMON, LIFTING, DULL = _split(_KINDS).values()
TOPICS = _split(_TOPICS)
SUBTOPICS = {topic: _split(lists) for topic, lists in _SUBTOPICS.items()}
