for (const chosen of document.querySelectorAll("[name=verdict]")) {
  chosen.addEventListener("input", () => {
    for (const row of document.querySelectorAll("tr[data-verdict]"))
      row.hidden = chosen.value !== "" && row.dataset.verdict !== chosen.value;
  });
}
for (const section of document.querySelectorAll(".lattices")) {
  const figures = [...section.querySelectorAll(".lattice")], chosen = section.querySelector("select");
  const show = () => figures.forEach((figure, i) => { figure.hidden = i !== Number(chosen.value); });
  chosen.addEventListener("input", show);
  show();
}
for (const figure of document.querySelectorAll(".lattice")) tellElements(figure);
for (const line of document.querySelectorAll(".command")) {
  const code = line.querySelector("code"), button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try { await navigator.clipboard.writeText(code.textContent); } catch { document.execCommand("copy"); }
    button.textContent = "Copied";
  });
  line.append(button);
}
const samples = JSON.parse(document.getElementById("data").textContent).samples;
for (const section of document.querySelectorAll(".browser")) {
  const [text, chain, sweep] = ["text", "chain", "sweep"].map((n) => section.querySelector(`[name=${n}]`));
  const show = () => {
    const rows = samples[section.dataset.file][text.value][chain.value];
    sweep.max = rows.length;
    const now = rows[sweep.value - 1], before = rows[sweep.value - 2] || now;
    section.querySelector(".sample").replaceChildren(...markedUnits(unitsOf(now.text), unitsOf(before.text)));
    section.querySelector("output").textContent = `${sweep.value} of ${rows.length}, energy ${now.energy}`;
  };
  for (const control of [text, chain, sweep]) control.addEventListener("input", show);
  show();
}
