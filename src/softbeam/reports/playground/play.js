const page = JSON.parse(document.getElementById("data").textContent);
const post = async (name, given) => {
  const answer = await fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given) });
  const found = answer.headers.get("Content-Type").startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(found.error);
  return found;
};
const svg = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const made = (name, className, text) => {
  const element = document.createElement(name);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const failing = (section) => (error) => {
  const line = section.querySelector(".error");
  line.textContent = error ? (error.message === "Failed to fetch" ? "softbeam play has ended" : error.message) : "";
  line.hidden = !error;
};

const showBeams = (section) => {
  const control = (name) => section.querySelector(`[name=${name}]`);
  const [sentence, source, k, alpha, play] = ["sentence", "source", "k", "alpha", "play"].map(control);
  const figure = section.querySelector(".lattice"), fail = failing(section);
  let busy = false, again = false, chosen = null, playing = false, seen = new Map();
  const shares = section.querySelector(".shares");
  const curve = () => {
    const wide = shares.clientWidth - 70, x = (exponent) => 50 + (Number(exponent) + 1) / 3 * wide, y = (share) => 122 - 112 * share;
    const parts = [svg("path", { class: "axis", d: `M50 10V122H${50 + wide}` })];
    for (const at of [-1, 0, 1, 2]) parts.push(svg("text", { x: x(at), y: 138, "text-anchor": "middle" }, at === -1 ? "0.1" : String(10 ** at)));
    for (const at of [0, 0.5, 1]) parts.push(svg("text", { x: 44, y: y(at) + 4, "text-anchor": "end" }, `${100 * at} %`));
    for (const [exponent, share] of seen) parts.push(svg("circle", { class: exponent === alpha.value ? "now" : "", cx: x(exponent), cy: y(share), r: exponent === alpha.value ? 6 : 3 }));
    shares.replaceChildren(...parts);
  };
  const row = (soft, hard) => {
    const cells = made("tr", "");
    const number = (value) => made("td", "n", value === undefined ? "" : value.toFixed(2));
    cells.append(made("td", soft && hard && soft.text !== hard.text ? "differs" : "", soft?.text ?? ""), number(soft?.score), number(soft?.hard_score), made("td", "", hard?.text ?? ""), number(hard?.score));
    return cells;
  };
  const draw = async () => {
    if (busy) { again = true; return; }
    busy = true;
    const at = alpha.value;
    try {
      const given = { sentence: Number(sentence.value), source: source.value, k: Number(k.value), alpha: 10 ** at };
      const found = given.sentence || given.source.trim() ? await post("beams", given) : null;
      fail(null);
      if (found) show(found, at);
    } catch (error) { fail(error); playing = false; play.textContent = "Play"; }
    busy = false;
    if (again) { again = false; await draw(); }
  };
  const show = (found, at) => {
    figure.querySelector(".soft").innerHTML = found.soft;
    figure.querySelector(".hard").innerHTML = found.hard;
    const nodes = tellElements(figure, (i) => { chosen = i; nodes.forEach((node, j) => node.classList.toggle("chosen", j === i)); });
    if (chosen !== null && nodes[chosen]) {
      nodes[chosen].classList.add("chosen");
      figure.querySelector(".told").textContent = nodes[chosen].dataset.told;
    }
    seen.set(at, found.share);
    section.querySelector(".share").textContent = `${(100 * found.share).toFixed(1)} %`;
    curve();
    const body = section.querySelector(".paths tbody"), rows = Math.max(found.soft_paths.length, found.hard_paths.length);
    body.replaceChildren(...Array.from({ length: rows }, (_, i) => row(found.soft_paths[i], found.hard_paths[i])));
    section.querySelector(".gold").textContent = found.gold ? `gold: ${found.gold}` : "";
  };
  const moved = () => {
    const value = 10 ** alpha.value, text = value < 10 ? value.toFixed(2) : value.toFixed(1);
    section.querySelector(".alpha output").textContent = text;
    alpha.setAttribute("aria-valuetext", text);
    return draw();
  };
  const changed = () => {
    section.querySelector(".own").hidden = sentence.value !== "0";
    seen = new Map();
    chosen = null;
    return moved();
  };
  for (const one of [sentence, source, k]) one.addEventListener("input", changed);
  alpha.addEventListener("input", () => { playing = false; play.textContent = "Play"; moved(); });
  play.addEventListener("click", async () => {
    playing = !playing;
    play.textContent = playing ? "Pause" : "Play";
    if (playing && Number(alpha.value) >= 2) alpha.value = -1;
    while (playing && Number(alpha.value) < 2) {
      alpha.value = Number(alpha.value) + 0.05;
      await moved();
      await new Promise((done) => setTimeout(done, 90));
    }
    if (playing) { playing = false; play.textContent = "Play"; }
  });
  addEventListener("resize", curve);
  changed();
};

const showChains = (section) => {
  const control = (name) => section.querySelector(`[name=${name}]`), fail = failing(section);
  const [play, step, speed] = ["play", "step", "speed"].map(control);
  const rows = section.querySelector(".rows"), place = section.querySelector(".place");
  let now = null, playing = false;
  const begin = async () => {
    pause();
    const number = (name) => Number(control(name).value), word = (name) => control(name).value;
    const given = { text: word("text"), free: word("free"), start: word("start"), kernel: word("kernel") };
    for (const name of ["chains", "proposal_temperature", "seed"]) given[name] = number(name);
    try {
      const begun = await post("begin", given);
      fail(null);
      now = { number: begun.number, received: 0, done: 0, waiting: [], start: null, over: false, asking: null, counts: { accepted: 0, rejected: 0, same: 0 } };
      const mine = now;
      rows.replaceChildren(made("p", "note", "The first texts are being drawn …"));
      while (now === mine && !mine.start && !mine.over) { await ask(mine); if (!mine.start) await pauseFor(120); }
    } catch (error) { fail(error); }
  };
  const pauseFor = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  const ask = (mine) => mine.asking ??= (async () => {
    try {
      const found = await post("news", { number: mine.number, after: mine.received });
      mine.waiting.push(...found.steps);
      mine.received += found.steps.length;
      mine.over = found.over;
      if (found.start && !mine.start) first(mine, found.start);
      if (found.error) throw new Error(found.error);
    } catch (error) { mine.over = true; pause(); fail(error); }
    mine.asking = null;
  })();
  const first = (mine, start) => {
    mine.start = start;
    mine.energies = start.energy.map((energy) => [energy]);
    const free = new Set(start.free);
    mine.rows = start.tokens.map((tokens, c) => {
      const row = made("div", "chain"), cells = made("div", "cells"), energy = made("output", "", start.energy[c].toFixed(2));
      row.style.setProperty("--of", page.colors[c % page.colors.length]);
      const parts = tokens.map((token, i) => {
        const cell = made("span", free.has(i) ? "cell free" : "cell");
        cell.append(made("span", "token", token), made("span", "tried"));
        return cell;
      });
      cells.append(...parts);
      row.append(made("span", "name", `chain ${c + 1}`), cells, energy);
      return { parts, energy, row, marked: [] };
    });
    rows.replaceChildren(...mine.rows.map((row) => row.row));
    section.querySelector(".move").textContent = "";
    told(mine);
  };
  const apply = (mine, [sweep, moves]) => {
    mine.done += 1;
    mine.sweep = sweep + 1;
    moves.forEach(([cells, proposed, outcome, chance, energy], c) => {
      const row = mine.rows[c];
      for (const cell of row.marked) { cell.classList.remove("accepted", "rejected", "same"); cell.lastChild.textContent = ""; }
      row.marked = cells.map((at) => row.parts[at]);
      if (outcome !== "none") mine.counts[outcome] += 1;
      row.marked.forEach((cell, i) => {
        cell.classList.add(outcome);
        if (outcome === "accepted") { cell.lastChild.textContent = cell.firstChild.textContent; cell.firstChild.textContent = proposed[i]; }
        if (outcome === "rejected") cell.lastChild.textContent = proposed[i];
      });
      row.energy.textContent = energy.toFixed(2);
      mine.energies[c].push(energy);
    });
    const [cells, proposed, outcome, chance] = moves[0];
    const words = { accepted: `accepted, with probability ${chance.toFixed(3)}`, rejected: `rejected; the probability of acceptance was ${chance.toFixed(3)}`, same: "what was there already" };
    if (outcome !== "none") section.querySelector(".move").textContent = `Step ${mine.done}, chain 1, position ${cells.map((at) => at + 1).join(", ")}: ${proposed.join(" ")} is ${words[outcome]}.`;
    told(mine);
  };
  const told = (mine) => {
    place.textContent = mine.done ? `sweep ${mine.sweep}, step ${mine.done}` : "start";
    const { accepted, rejected, same } = mine.counts, all = accepted + rejected + same;
    const percent = (count) => `${count} (${Math.round(100 * count / all)} %)`;
    section.querySelector(".tally").textContent = all ? `Of ${all} proposals ${percent(accepted)} changed the text, ${percent(rejected)} were rejected, ${percent(same)} were the same token again.` : "";
    energies(mine);
  };
  const energies = (mine) => {
    const every = mine.energies.flat(), low = Math.min(...every), high = Math.max(...every), span = high - low || 1;
    const chart = section.querySelector(".energies"), right = chart.clientWidth - 20, steps = Math.max(mine.done, 40);
    const x = (i) => 60 + i / steps * (right - 60), y = (energy) => 188 - (energy - low) / span * 172;
    const parts = [svg("path", { class: "axis", d: `M60 10V194H${right}` }), svg("text", { x: 54, y: 20, "text-anchor": "end" }, high.toFixed(1)), svg("text", { x: 54, y: 192, "text-anchor": "end" }, low.toFixed(1)), svg("text", { x: 60, y: 212 }, "0"), svg("text", { x: right, y: 212, "text-anchor": "end" }, String(steps))];
    mine.energies.forEach((values, c) => {
      const color = page.colors[c % page.colors.length], last = values.length - 1;
      parts.push(svg("polyline", { stroke: color, points: values.map((energy, i) => `${x(i).toFixed(1)},${y(energy).toFixed(1)}`).join(" ") }));
      parts.push(svg("circle", { fill: color, cx: x(last), cy: y(values[last]), r: 3.5 }));
    });
    chart.replaceChildren(...parts);
  };
  const pause = () => { playing = false; play.textContent = "Play"; };
  const forward = async (mine) => {
    while (now === mine && !mine.waiting.length && !mine.over) { await ask(mine); if (!mine.waiting.length && !mine.over) await pauseFor(120); }
    if (now !== mine || !mine.start || !mine.waiting.length) return false;
    apply(mine, mine.waiting.shift());
    if (mine.waiting.length < 20 && !mine.over) ask(mine);
    return true;
  };
  play.addEventListener("click", async () => {
    if (playing || !now) { pause(); return; }
    playing = true;
    play.textContent = "Pause";
    const mine = now;
    while (playing && now === mine && await forward(mine)) await pauseFor(1000 / 2 ** speed.value);
    if (now === mine) pause();
  });
  step.addEventListener("click", () => { pause(); if (now) forward(now); });
  control("begin").addEventListener("click", begin);
  addEventListener("resize", () => { if (now?.start) energies(now); });
  if (control("text").value.trim()) begin();
};

if (document.getElementById("beams")) showBeams(document.getElementById("beams"));
if (document.getElementById("chains")) showChains(document.getElementById("chains"));
