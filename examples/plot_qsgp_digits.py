"""
Odd or even: digits with sampled basis functions
================================================

:class:`~skscalablegp.QSGPClassifier` approximates a kernel by thousands to millions of random
features. Each training step draws some rows and some features, so that its cost depends on neither
number. Here it classifies digits as odd or even, with probabilities.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_qsgp_digits.png"

# %%
# The data are scikit-learn's 8 x 8 digits.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

from skscalablegp import QSGPClassifier

images, digit = load_digits(return_X_y=True)
images = images.astype(np.float32) / 16
side = int(np.sqrt(images.shape[1]))
labels = np.where(digit % 2 == 1, "odd", "even")
split = train_test_split(images, labels, digit, test_size=0.1, random_state=0, stratify=digit)
X_train, X_test, y_train, y_test, _, digit_test = split

# %%
# Pixels share one length scale and are not standardised. ``inference="stochastic"`` requests
# stochastic steps, although linear algebra would be cheaper for so small a table.
model = QSGPClassifier(
    ConstantKernel() * RBF(0.1 * side**2 / 8, (0.1, 100)) + WhiteKernel(1e-3, "fixed"),
    n_components=10_000,
    component_batch_size=2_000,
    control_variate_rank=500,
    inference="stochastic",
    standardize=False,
    random_state=0,
).fit(X_train, y_train)
probability = model.predict_proba(X_test)
print(f"accuracy {accuracy_score(y_test, model.predict(X_test)):.3f}")
print(f"mean negative log probability {log_loss(y_test, probability):.3f}")
print(model.fit_report_.summary)

# %%
# The evidence lower bound during training.
fig, axes = plt.subplots(1, 2, figsize=(9, 3))
history = model.history_
steps = np.array(history["stage"]) == "batches"
axes[0].plot(np.array(history["epochs"])[steps], np.array(history["objective"])[steps], "o-")
axes[0].set(xlabel="passes over the rows", ylabel="lower bound per row")
axes[1].hist(probability[y_test == "odd", 1], bins=20, alpha=0.6, label="odd digits")
axes[1].hist(probability[y_test == "even", 1], bins=20, alpha=0.6, label="even digits")
axes[1].set(xlabel="probability of odd")
axes[1].legend()
fig.tight_layout()

# %%
# The digits with the least certain predictions.
hardest = np.argsort(np.abs(probability[:, 1] - 0.5))[:8]
fig, axes = plt.subplots(1, 8, figsize=(9, 1.6))
for axis, i in zip(axes, hardest, strict=True):
    axis.imshow(X_test[i].reshape(side, side), cmap="gray_r")
    axis.set_title(f"{digit_test[i]}: {probability[i, 1]:.2f}", fontsize=8)
    axis.axis("off")
plt.show()
