"""The 1024 words of join phrases.

They are plain words of four to eight letters. No two share their first four letters,
and no single typing error (a letter wrong, missing, doubled or swapped) turns one into
another, so a typing error nearly always gives an unknown word that can be named. The
order is part of the checksum and never changes.
"""

from __future__ import annotations

WORDS = tuple(
    """
abacus accent acorn across actor adapt address admire adult advance advice aerial
agent agree airport aisle alarm album alcove alert algebra alley almond alpaca alpine
amaze amber amuse anchor ancient angel animal ankle answer antenna antique anvil
apricot apron aqua arcade arch arctic arrive arrow artist aspen atlas atom attach
attic audio august author autumn avenue avocado awake award azure baby bacon badge
bagel bake balance ball bamboo banana band banjo banner barber barn barrel basket bath
battery beach bead beaver beetle begin belt berry bicycle biology birch bird biscuit
bison blade blanket blend blink block bloom blossom blouse blue board boat bold
bonfire bonus book border borrow bottle bounce brain branch brave breeze brick bridge
bright bronze brother brown brush bubble bucket buffalo build bulb bundle bunny burger
busy button buzz cabbage cabin cactus calcium calendar camel camp canal candle canoe
canvas captain caramel carbon card cargo carpet carrot carve castle catch ceiling
celery cereal chair chalk champion change charm chase chef cherry chess chicken chili
chimney choice chorus chrome cider cinema cinnamon circle citizen citrus city clarinet
class clean cliff climb clinic cloud clown club coach coast cobalt cocoa coffee column
comb comedy comic concert copper cork cottage cousin cover crab craft crane crater
cream cricket crisp crocus crop crowd cruise crumb crunch crystal cube cuddle curious
cushion cycle cymbal dance daughter dawn december deck deep degree delight denim
dentist desert design diagram diamond diary dice diesel digit dinner dinosaur dish
doctor doll dolphin domain dome donkey door double dough dozen dragon drama draw dress
drift drill drive drum dune eager eagle early earth easel east echo eclipse edge eight
elbow electric elegant element elephant elevator emerald energy engine enjoy envelope
evening example expert fabric factory fair falcon family famous fancy farm fashion
father february feed fence fern festival fetch fiddle field figure filter final finger
finish flag flame flannel flash fleet flight flint flour flow fluid flute foam focus
folk foot forest forum fossil freedom fresh friend fringe frog frozen fruit fudge
funnel furnace future gadget galaxy gallery game garage garden garlic garment gazelle
gear gecko genius gentle geology gesture giant gift giggle giraffe glacier glad glance
glaze gleam glide glimpse glitter globe glory goblet golf goose gopher gorilla grace
grand grass gravity great green grid grocery grove guard guitar habit hammer hamster
happy harmony harp harvest hawk hazel heart heavy helium hello helmet help herb heron
hickory high hike hill hint history hobby hockey holiday hollow honest horizon horn
horse hotel hour humble hundred hurdle hybrid icicle icon idea igloo iguana image inch
index indigo indoor inspire invent invite island item ivory jacket jaguar january
jasmine jazz jeans jelly jewel jigsaw join joke journal juice july jumbo jump jungle
junior kale kangaroo karate kayak keen kennel ketchup kettle king kiosk kitchen kite
kitten kiwi knee knight knit knob knock koala label ladder lagoon lamb language
lantern laptop laser laugh laundry laurel lavender leaf league learn leather legend
lemon lens leopard lesson lettuce level library lilac lily linen lion lizard llama
lobster local lodge logic loop lotus lounge love lucky luggage lumber lunar lunch
lupine lyric machine magic magnet mammoth mandolin mango mansion mantle manual marble
marine market marsh mask matrix meadow measure medal melody member memory menu message
meteor method metro midnight mineral minute mirror mobile model mohair moment monday
money month moon morning mosaic moss motor mountain mouse movie muffin mulberry museum
mushroom music mustard mystery myth nail napkin natural nebula nectar needle neon
nephew nickel nine noble noise noodle north note notice novel nozzle nutmeg nylon
oasis oboe ocean october offer office omega onion onyx opal open opera option oracle
orange orbit orchard organ orient osprey ostrich oxygen oyster ozone paddle paint
palace palm panda panel panther papaya paper parade parcel parent party pasta patio
pave peace peak peanut pebble pecan pelican pencil penguin pepper perfect petal phone
photo physics piano pick picnic picture pier pigeon pillow pilot pioneer pipe pitch
pixel pizza planet plaster plate play plug pocket poem polar pollen pond pool porch
postage potato pottery poultry powder prairie present pretzel prism program project
promise proof pudding pulse puma pumpkin pupil puppet purple puzzle pyramid python
quail quarter queen quest quick quiet quill quince quiver quiz rabbit raccoon radar
radio rally random rapid raven recipe record recycle reef reflect refresh region
reindeer relax release remember renew repair rescue review rhino rhythm ribbon ride
rinse ripple river robe robin robot rock rodeo room rotate route royal rubber ruby
rudder ruler runway rustic safari safe saffron salad salmon salt salute sandal
sapphire sardine sauce sauna scale scan scarf scene school science scoop score scout
screen script scroll search second series shade shallow shark sheep shell shield shift
shine ship shoe short shovel shrimp shrub shuffle shutter sierra sign silent silk
silver simple siren sister skate sketch skill skirt sleeve slice slipper slope small
smart smile smooth snack snap sneaker snow soccer soda soft solid solve sonata sorbet
south space speed sphere spider spike spinach spiral splash sponge spoon spray spread
spring sprout spruce square squid stable stadium stage stair stamp stand station steak
steel step stereo stick stitch stone stool storm stream student style subway suede
sugar suit summer sunday surface surprise sweater sweet swing symbol symphony syrup
system tackle taco tailor talent talk tape target tart taste taxi team teapot temple
tennis terrace texture thank theme theory thermal thimble thread thrive throne thumb
thunder thursday ticket tidy tiger timber time tissue title today together token
tomato tonic tooth topaz tornado tortoise toucan towel track trade traffic trail
travel tray treasure tree triangle trim trophy trout trumpet trunk trust truth tuba
tuesday tulip tundra turbo turkey turn turtle tuxedo tweed twelve twenty twig twist
ukulele umbrella uncle unicorn uniform universe unwrap upbeat update uphill uplift
urban usher utensil vacuum valve vanilla vase vector vehicle velvet venture verse
viaduct vibrant victory video view village vintage vinyl violet viper visit vivid
voice volcano volley volume voyage waffle wagon waist wallet walnut waltz wander
warbler water wedding welcome whale wheat whisper white widget width window winter
wisdom world yacht yoga yogurt young zebra zenith zephyr zero zigzag zinc zipper
zodiac zucchini
""".split()  # noqa: SIM905 (a list of 1024 lines is no easier to read)
)
