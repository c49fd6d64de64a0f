/** Small helpers: every text goes in as text, and colours by the style object, which the page's CSP allows. */

export function find<T extends HTMLElement = HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no #${id}`);
  return element as T;
}

export function made<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  fields: { class?: string; text?: string } = {},
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (fields.class !== undefined) element.className = fields.class;
  if (fields.text !== undefined) element.textContent = fields.text;
  element.append(...children);
  return element;
}

function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  return value >>> 0;
}

export function coloured(element: HTMLElement, category: string): void {
  element.style.setProperty("--hue", String((hash(category) * 137.5) % 360 | 0));
}

const SVG = "http://www.w3.org/2000/svg";

/** A quiet picture made of the story's id: hills under a sun, never fetched from anywhere. */
export function picture(id: string): SVGElement {
  let seed = hash(id);
  const next = (most: number): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return (seed / 2 ** 32) * most;
  };
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 320 180");
  svg.setAttribute("preserveAspectRatio", "xMidYMid slice");
  const sun = document.createElementNS(SVG, "circle");
  sun.setAttribute("cx", String(60 + next(200)));
  sun.setAttribute("cy", String(40 + next(40)));
  sun.setAttribute("r", String(14 + next(16)));
  sun.setAttribute("opacity", "0.5");
  const shapes: SVGElement[] = [sun];
  for (const [height, opacity] of [[80, 0.25], [110, 0.4], [140, 0.6]] as const) {
    const hill = document.createElementNS(SVG, "path");
    const points = Array.from({ length: 5 }, (_, at) => [at * 80, height - 20 + next(36)] as const);
    let path = `M0 180 L0 ${points[0]?.[1] ?? height}`;
    for (let at = 1; at < points.length; at++) {
      const [[x0, y0], [x1, y1]] = [points[at - 1] ?? [0, 0], points[at] ?? [0, 0]];
      path += ` C${x0 + 40} ${y0} ${x1 - 40} ${y1} ${x1} ${y1}`;
    }
    hill.setAttribute("d", `${path} L320 180 Z`);
    hill.setAttribute("opacity", String(opacity));
    shapes.push(hill);
  }
  for (const shape of shapes) shape.setAttribute("class", "shape");
  svg.append(...shapes);
  return svg;
}
