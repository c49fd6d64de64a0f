"""The words that made-up films are named with; no noun is in two genres, so that each tells one."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Indices

# Any film may have any of these.
_ADJECTIVES = (
    "silent golden broken hidden crimson last first lost distant burning frozen hollow secret restless bitter "
    "gentle narrow crooked faithful borrowed midnight stolen quiet savage tender reckless unlikely ancient "
    "shining forgotten wandering second patient stubborn northern southern invisible perfect fallen little "
    "great endless sudden honest empty velvet paper iron emerald winter"
)

# Genre -> nouns of its titles; all lists are equally long. Small worlds take the first genres.
_GENRES = {
    "thriller": "harbour witness alibi hostage informant passenger countdown conspiracy stranger pursuit",
    "comedy": "wedding neighbour butler holiday mishap landlord reunion roommate prank uncle",
    "science fiction": "galaxy starship android colony signal orbit clone asteroid telescope paradox",
    "western": "sheriff saloon canyon stagecoach outlaw prairie rancher revolver posse homestead",
    "horror": "crypt haunting cellar scarecrow asylum curse graveyard nightmare ouija fang",
    "romance": "kiss letter sweetheart promise valentine embrace courtship darling longing proposal",
    "war": "regiment trench battalion armistice convoy sniper barracks bunker frontline medal",
    "fantasy": "dragon wizard kingdom enchantress prophecy unicorn amulet elf spellbook griffin",
    "crime": "heist detective burglar mobster forger getaway precinct smuggler verdict racket",
    "family": "treehouse puppy grandmother playground birthday sandcastle kitten bicycle kite babysitter",
    "music": "melody orchestra violin serenade drummer quartet ballad pianist choir encore",
    "sport": "goalkeeper boxer marathon trophy stadium coach underdog sprinter penalty playoff",
    "history": "emperor queen revolution cathedral treaty pharaoh dynasty viking senate monarchy",
    "documentary": "archive interview census expedition testimony glacier factory election portrait footage",
    "adventure": "treasure voyage jungle compass castaway lagoon explorer raft summit map",
    "animation": "robot penguin crayon dinosaur gnome teapot hedgehog toy snowman mermaid",
    "mystery": "riddle footprint manuscript lighthouse fingerprint cipher keyhole inheritance clue fog",
    "disaster": "earthquake volcano avalanche tsunami flood hurricane meteor inferno wreck blackout",
    "spy": "agent embassy dossier microfilm defector courier codename handler border briefcase",
    "superhero": "cape sidekick mask villain mutant vigilante lair avenger shield nemesis",
    "courtroom": "jury lawyer judge appeal objection oath plaintiff confession acquittal prosecutor",
    "cooking": "recipe bakery chef soup kitchen vineyard spice banquet oven supper",
    "travel": "suitcase postcard railway island ferry passport bazaar pilgrim caravan itinerary",
    "nature": "meadow wolf rainforest heron reef savannah beaver orchid migration whale",
    "medical": "surgeon hospital nurse epidemic ambulance ward remedy heartbeat vaccine clinic",
    "school": "teacher classroom graduation detention headmaster essay blackboard homework pupil recess",
    "space opera": "empress armada nebula warlord fleet homeworld starfighter comet rebellion admiral",
    "heist comedy": "safecracker locksmith decoy museum diamond bungler vault disguise accomplice loot",
    "ghost story": "phantom attic candle whisper mirror staircase lantern apparition poltergeist veil",
    "samurai": "katana ronin shogun dojo temple duel blossom archer clan scroll",
    "pirates": "galleon buccaneer cutlass plunder corsair anchor mutiny parrot doubloon cannon",
    "circus": "acrobat juggler ringmaster trapeze clown tightrope elephant carousel magician tent",
    "zombies": "outbreak horde survivor quarantine shambler barricade plague bite mall shelter",
    "vampires": "coffin castle countess bloodline bat garlic stake moonrise thirst crucifix",
    "robots": "circuit automaton assembly sensor upgrade mainframe drone prototype servant glitch",
    "time travel": "clock yesterday tomorrow loop calendar wormhole hourglass century machine anniversary",
    "politics": "senator campaign scandal ballot ministry speech cabinet lobbyist debate coalition",
    "journalism": "headline newsroom editor scoop deadline reporter column press leak typewriter",
    "farm life": "harvest barn tractor orchard shepherd scythe pasture mare haystack plough",
    "mountain": "ridge climber blizzard rope basecamp peak chalet crevasse sherpa ascent",
    "sea": "tide sailor submarine captain storm mast trawler wave dockyard current",
    "desert": "dune oasis mirage camel nomad sandstorm well sultan scorpion cactus",
    "arctic": "icebreaker husky igloo walrus tundra sledge aurora trapper floe thaw",
    "motor racing": "racetrack driver pitstop engine chequer hairpin mechanic podium turbo lap",
    "chess": "gambit grandmaster rook bishop stalemate endgame pawn checkmate opening prodigy",
    "dance": "ballerina tango waltz rehearsal slipper studio choreographer partner pirouette ballroom",
    "theatre": "actress curtain understudy stage playwright audition applause costume balcony prompter",
    "art": "painter gallery canvas sculptor forgery muse sketch easel fresco palette",
    "fashion": "model runway tailor gown seamstress boutique hat needle silk designer",
    "gangster": "godfather speakeasy bootlegger syndicate racketeer hideout cigar informer turf payroll",
    "prison": "inmate warden escape cell tunnel parole sentence guard visitor shackle",
    "aviation": "pilot cockpit runaway propeller biplane airfield parachute squadron glider hangar",
    "trains": "conductor locomotive platform signalman sleeper timetable carriage junction viaduct whistle",
    "cats": "tomcat whisker rooftop windowsill purr alley saucer paw tabby catnap",
    "dogs": "terrier leash spaniel kennel bone bloodhound pawprint collar greyhound stray",
    "horses": "stallion jockey stable derby saddle foal bridle gallop paddock mane",
    "myth": "titan oracle minotaur labyrinth olympus siren centaur thunderbolt chimera underworld",
    "fairy tale": "princess frog spindle woodcutter gingerbread godmother goblin glass beanstalk tower",
    "city life": "taxi skyline subway penthouse doorman pavement newsstand lamppost crosswalk corner",
    "village life": "vicar postman bakehouse bridge maypole miller choirboy inn green baker",
}

GENRES = tuple(_GENRES)
_NOUNS = np.array([nouns.title().split() for nouns in _GENRES.values()])  # [genres, nouns]
_QUALITIES = np.array(_ADJECTIVES.title().split())


def film_titles(genres: Indices, generator: np.random.Generator) -> list[str]:
    """A title for each film of these genres, all distinct: a title that is there already gets a sequel's number."""
    noun = generator.integers(0, _NOUNS.shape[1], len(genres))
    quality = generator.integers(0, len(_QUALITIES), len(genres))
    part = _occurrence((genres.astype(np.int64) * _NOUNS.shape[1] + noun) * len(_QUALITIES) + quality)
    return [
        f"The {adjective} {thing}{f' {number + 1}' if number else ''} ({GENRES[genre]})"
        for adjective, thing, number, genre in zip(
            _QUALITIES[quality].tolist(), _NOUNS[genres, noun].tolist(), part.tolist(), genres.tolist(), strict=True
        )
    ]


def _occurrence(keys: np.ndarray) -> np.ndarray:
    """For each key, how many equal ones stand before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    within = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    counts = np.empty_like(within)
    counts[order] = within
    return counts
