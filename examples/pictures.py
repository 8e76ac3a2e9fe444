"""# Pictures that look alike

Make a searchable collection of a folder of pictures, and find those that look like a
given file. `auxbit images create` and `auxbit serve` do the same from the command line,
with a page in the browser.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits

from auxbit.images.build import create
from auxbit.images.pictures import Pictures

# %% A folder of PNG files: 400 handwritten digits.
folder = Path("digits")
folder.mkdir(exist_ok=True)
digits = load_digits()
for number, (image, label) in enumerate(zip(digits.images[:400], digits.target)):
    pixels = (255 - image * 15.9).astype("uint8")
    Image.fromarray(pixels).resize((32, 32)).save(folder / f"{label}-{number:03}.png")

# %% The collection. If this runs again, only new files are read.
report = create(folder, "digits.auxbit", bits=32)
print(
    f"{report.added} pictures;",
    ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report.seconds.items()),
)

# %% The nearest pictures to a file, which need not be in the collection.
with Pictures.open("digits.auxbit") as pictures:
    query = folder / "3-003.png"
    found = pictures.search(query, k=9)
figure, axes = plt.subplots(1, 9, figsize=(8, 1.3))
for each, ax in zip(found, axes):
    ax.imshow(Image.open(folder / each.file), cmap="gray")
    ax.set_title(f"{each.distance:.2f}", fontsize=8)
    ax.axis("off")
