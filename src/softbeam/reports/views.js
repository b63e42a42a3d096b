"use strict";
// What the report and the playground share: elements of a beam that can be pointed at, and texts as units.
const tellElements = (figure, chosen = () => {}) => {
  const nodes = [...figure.querySelectorAll("g[data-told]")], told = figure.querySelector(".told");
  nodes.forEach((node, i) => {
    const show = () => { told.textContent = node.dataset.told; chosen(i); };
    node.addEventListener("focus", show);
    node.addEventListener("pointerenter", show);
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step && nodes[i + step]) { event.preventDefault(); nodes[i + step].focus(); }
    });
  });
  return nodes;
};
const unitsOf = (text) => text.includes(" ") ? text.split(/(?<= )/) : [...text];
const markedUnits = (units, before) => units.map((unit, i) => {
  const part = document.createElement(unit.trim() !== (before[i] || "").trim() ? "mark" : "span");
  part.textContent = unit;
  return part;
});
