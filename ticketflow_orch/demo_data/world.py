"""The world of the demo data: where organizers are, what they put on, and what people and things are called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """An organizer's home. `price` is what a ticket costs there, `step` what prices are rounded to: minor units."""

    city: str
    timezone: str
    locale: str
    currency: str
    tax_bps: int
    price: int
    step: int


@dataclass(frozen=True, slots=True)
class Genre:
    """What an organizer puts on. `season`: how busy each month is; `hour`: when it begins; `hours`: how long it is."""

    venues: tuple[str, ...]
    titles: tuple[str, ...]
    season: tuple[int, ...]
    hour: int
    hours: int
    price_percent: int


PLACES = (
    Place("Madrid", "Europe/Madrid", "es-ES", "EUR", 2100, 2_400, 50),
    Place("Berlin", "Europe/Berlin", "de-DE", "EUR", 1900, 2_800, 50),
    Place("Porto", "Europe/Lisbon", "pt-PT", "EUR", 2300, 1_800, 50),
    Place("Athens", "Europe/Athens", "el-GR", "EUR", 2400, 1_600, 50),
    Place("Manchester", "Europe/London", "en-GB", "GBP", 2000, 2_200, 25),
    Place("Edinburgh", "Europe/London", "en-GB", "GBP", 2000, 1_900, 25),
    Place("Brooklyn", "America/New_York", "en-US", "USD", 0, 3_500, 100),
    Place("Oakland", "America/Los_Angeles", "en-US", "USD", 0, 3_000, 100),
    Place("St. John's", "America/St_Johns", "en-CA", "CAD", 1500, 3_200, 50),
    Place("Recife", "America/Recife", "pt-BR", "BRL", 500, 8_000, 500),
    Place("Osaka", "Asia/Tokyo", "ja-JP", "JPY", 1000, 4_500, 100),
    Place("Kuwait City", "Asia/Kuwait", "ar-KW", "KWD", 0, 7_500, 250),
    Place("Kathmandu", "Asia/Kathmandu", "ne-NP", "USD", 1300, 900, 50),
    Place("Sydney", "Australia/Sydney", "en-AU", "AUD", 1000, 4_200, 100),
    Place("Kiritimati", "Pacific/Kiritimati", "en-KI", "AUD", 1250, 1_500, 100),
    Place("Pago Pago", "Pacific/Pago_Pago", "en-AS", "USD", 0, 1_200, 50),
)
GENRES = (
    Genre(
        ("Theatre", "Playhouse", "Opera House"),
        ("Hamlet", "The Seagull", "Carmen", "Swan Lake", "Waiting for Godot", "La Traviata", "Medea", "Blood Wedding"),
        (10, 10, 11, 10, 8, 5, 2, 2, 8, 12, 12, 14), 20, 3, 130,
    ),
    Genre(
        ("Club", "Jazz Cellar", "Music Hall"),
        ("Basement Sessions", "Vinyl Night", "Friday Residency", "Late Set", "Open Stage", "Brass & Bass"),
        (8, 8, 9, 9, 9, 8, 7, 6, 9, 10, 10, 12), 22, 4, 80,
    ),
    Genre(
        ("Festival", "Open Air", "Fair"),
        ("Opening Night", "Saturday Day Pass", "Sunday Day Pass", "Lakeside Stage", "Closing Gala", "Food & Folk"),
        (1, 1, 2, 5, 9, 14, 16, 14, 9, 4, 1, 2), 14, 9, 190,
    ),
)  # fmt: skip
WORDS = (
    "Lantern", "Harbour", "Meridian", "Juniper", "Copper", "Northgate", "Halcyon", "Paper Moon", "Riverside",
    "Saffron", "Old Mill", "Aurora", "Kingfisher", "Velvet", "Granite", "Orchard", "Compass", "Bluebird", "Mosaic",
    "Tramway", "Cedar", "Firefly", "Salt House", "Parallel", "Wildflower", "Anchor", "Sundial", "Magnolia", "Foundry",
)  # fmt: skip
FIRST_NAMES = ("ana", "ben", "chloe", "david", "emi", "farid", "grace", "hugo", "ines", "jonas", "kaya", "luis")
LAST_NAMES = ("moreno", "schmidt", "tanaka", "okafor", "silva", "murphy", "haddad", "novak", "rossi", "larsen")
RATES = (500, 800, 1000, 1200, 1500)
