// TeX in questions and steps as MathML: the commands that mathematics data sets use. A formula with anything else stays
// text. Elements are made one by one and their text is text: nothing from data is read as markup.

const table = (list) => new Map(list.trim().split(/\s+/).map((pair) => pair.split(":")));
const IDENTIFIERS = table(`
  alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν
  xi:ξ pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ
  Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ ell:ℓ hbar:ℏ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅
  varnothing:∅ angle:∠ measuredangle:∡ triangle:△ square:□ Box:□ blacksquare:■ bigcirc:◯ star:⋆ degree:° prime:′ imath:ı
  partial:∂ nabla:∇ forall:∀ exists:∃ top:⊤ bot:⊥ dots:… ldots:… cdots:⋯ dotsc:… dotsb:⋯ dotsm:⋯ vdots:⋮ ddots:⋱ checkmark:✓
  $:$ %:% #:# _:_ clubsuit:♣ spadesuit:♠ heartsuit:♡ diamondsuit:♢ pounds:£ S:§`);
const OPERATORS = table(`
  times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ cup:∪ cap:∩ setminus:∖ wedge:∧
  land:∧ vee:∨ lor:∨ neg:¬ lnot:¬ le:≤ leq:≤ leqslant:≤ ge:≥ geq:≥ geqslant:≥ ne:≠ neq:≠ lt:< gt:> ll:≪ gg:≫ equiv:≡
  approx:≈ sim:∼ simeq:≃ cong:≅ propto:∝ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ subsetneq:⊊ perp:⊥
  parallel:∥ nparallel:∦ mid:∣ nmid:∤ to:→ rightarrow:→ gets:← leftarrow:← leftrightarrow:↔ Rightarrow:⇒ implies:⟹
  Longrightarrow:⟹ longrightarrow:⟶ Leftarrow:⇐ Leftrightarrow:⇔ iff:⟺ Longleftrightarrow:⟺ mapsto:↦ uparrow:↑ downarrow:↓
  nearrow:↗ searrow:↘ therefore:∴ because:∵ colon:: &:& models:⊨ vdash:⊢ prec:≺ succ:≻ doteq:≐ triangleq:≜ asymp:≍
  int:∫ iint:∬ iiint:∭ oint:∮`);
const BIG = table("sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀");
const WITH_LIMITS = new Set("lim max min sup inf limsup liminf gcd lcm det Pr argmax argmin".split(" "));
const FUNCTIONS = new Set("sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp deg dim ker arg".split(" "));
const DELIMITERS = table(`
  (:( ):) [:[ ]:] |:| /:/ <:⟨ >:⟩ \\{:{ \\}:} \\lbrace:{ \\rbrace:} \\lbrack:[ \\rbrack:] \\|:‖ \\vert:| \\Vert:‖ \\lvert:|
  \\rvert:| \\lVert:‖ \\rVert:‖ \\langle:⟨ \\rangle:⟩ \\lfloor:⌊ \\rfloor:⌋ \\lceil:⌈ \\rceil:⌉ \\backslash:∖`);
const ACCENTS = table(`overline:‾ bar:‾ hat:^ widehat:^ vec:→ overrightarrow:→ overleftarrow:← overleftrightarrow:↔ tilde:~
  widetilde:~ dot:˙ ddot:¨ overbrace:⏞ overarc:⌒ underline:_ underbrace:⏟`);
const SPACES = table(`,:0.17em ::0.22em >:0.22em ;:0.28em !:-0.17em quad:1em qquad:2em enspace:0.5em thinspace:0.17em
  medspace:0.22em thickspace:0.28em`);
const BOARD = table("C:ℂ H:ℍ N:ℕ P:ℙ Q:ℚ R:ℝ Z:ℤ");
const TEXTS = new Set("text textrm textbf textit texttt textsf textnormal mbox mathrm operatorname hbox".split(" "));
const STYLES = new Set("mathbf boldsymbol bm bold mathit mathcal mathscr mathfrak mathsf mathtt mathbb pmb".split(" "));
const IGNORED = new Set("displaystyle textstyle scriptstyle limits nolimits hline allowbreak nonumber notag hfill".split(" "));
const MATRICES = table("matrix:.. smallmatrix:.. pmatrix:() bmatrix:[] Bmatrix:{} vmatrix:|| Vmatrix:‖‖ cases:{. array:..");
const ALIGNED = /^(?:align|aligned|alignat|gather|gathered|split|equation|eqnarray|multline)\*?$/;
const TOKEN = /\\(?:[a-zA-Z]+|[^])|\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|\.\d+|\s+|[^]/gu;
const MAX_DEPTH = 40;

const math = (name, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/1998/Math/MathML", name), attributes, children);
const group = (children) => (children.length === 1 ? children[0] : math("mrow", {}, ...children));
const fence = (sign, stretchy) => math("mo", { stretchy, lspace: 0, rspace: 0 }, sign);

// The formula as an mrow or mtable; throws where there is anything that it does not know.
function parseMath(source) {
  const tokens = source.match(TOKEN) ?? [];
  let [at, depth] = [0, 0];
  const fail = () => {
    throw new SyntaxError(`at ${tokens.slice(at - 1, at + 3).join("")}`);
  };
  const peek = () => {
    while (at < tokens.length && /^\s/.test(tokens[at]) && tokens[at].length) at++;
    return tokens[at];
  };
  const next = () => (peek() === undefined ? fail() : tokens[at++]);
  const expect = (token) => next() === token || fail();
  const isEnd = (token) => token === undefined || ["}", "&", "\\\\", "\\cr", "\\right", "\\end"].includes(token);

  function row(stop) {
    const children = [];
    while (!isEnd(peek()) && peek() !== stop) children.push(scripted());
    return group(children);
  }

  // The text between braces as it is.
  function raw() {
    expect("{");
    let text = "";
    for (let open = 1; ; ) {
      const token = tokens[at++] ?? fail();
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (open === 0) return text;
      if (token[0] === "\\" && !/^\\[$%#&_{}\s,;]$/.test(token)) fail();
      text += token[0] === "\\" ? token.slice(1).replace(/[,;]/, " ") : token === "~" ? " " : token;
    }
  }

  // A group, or one sign: of 12 the 1.
  function argument() {
    const token = peek();
    if (/^\d/.test(token ?? "") && token.length > 1) {
      tokens[at] = token.slice(1);
      return math("mn", {}, token[0]);
    }
    return atom();
  }

  function scripted() {
    const base = ["^", "_"].includes(peek()) ? math("mrow") : atom();
    let [sub, sup, primes] = [null, null, ""];
    for (; ["^", "_", "'", "\\limits", "\\nolimits"].includes(peek()); ) {
      const token = next();
      if (token === "'") primes += "′";
      else if (token === "^") sup = sup === null ? argument() : fail();
      else if (token === "_") sub = sub === null ? argument() : fail();
    }
    if (primes) sup = group([math("mo", {}, primes), ...(sup ? [sup] : [])]);
    const hasLimits = base.getAttribute("movablelimits") === "true" || base.classList.contains("brace");
    if (sub && sup) return math(hasLimits ? "munderover" : "msubsup", {}, base, sub, sup);
    if (sub) return math(hasLimits ? "munder" : "msub", {}, base, sub);
    return sup ? math(hasLimits ? "mover" : "msup", {}, base, sup) : base;
  }

  function atom() {
    if (++depth > MAX_DEPTH) fail();
    try {
      const token = next();
      if (token[0] === "\\" && token.length > 1) return command(token.slice(1), token);
      if (token === "{") {
        const inner = row();
        expect("}");
        return inner;
      }
      if (/^[\d.]\d|^\d/.test(token)) return math("mn", {}, token);
      if (/^\p{L}/u.test(token)) return math("mi", {}, token);
      if ("()[]|/".includes(token)) return fence(token, false);
      if (token === "~") return math("mspace", { width: "0.28em" });
      if (token === "-") return math("mo", {}, "−");
      return "^_#&\\".includes(token) ? fail() : math(token === "$" ? "mi" : "mo", {}, token);
    } finally {
      depth--;
    }
  }

  function delimiter() {
    const token = next();
    return token === "." ? "" : (DELIMITERS.get(token) ?? fail());
  }

  function rows(kind) {
    const lines = [[]];
    for (;;) {
      lines.at(-1).push(math("mtd", {}, row()));
      if (peek() === "&") next();
      else if (["\\\\", "\\cr"].includes(peek())) {
        next();
        if (tokens[at] === "[") while (next() !== "]");
        lines.push([]);
      } else break;
    }
    if (lines.at(-1).length === 1 && !lines.at(-1)[0].textContent) lines.pop(); // a break at the very end
    return math("mtable", { class: kind }, ...lines.map((cells) => math("mtr", {}, ...cells)));
  }

  function environment() {
    const name = raw();
    const isMatrix = MATRICES.has(name);
    if (!isMatrix && !ALIGNED.test(name)) fail();
    if (name === "array" || name.startsWith("alignat")) raw(); // the columns
    const body = rows(isMatrix ? (name === "cases" ? "left" : "") : /^(align|split|eqn)/.test(name) ? "aligned" : "");
    expect("\\end");
    if (raw() !== name) fail();
    const [open, close] = isMatrix ? MATRICES.get(name) : "..";
    const fences = [open, close].map((sign) => (sign === "." ? [] : [fence(sign, true)]));
    return group([...fences[0], body, ...fences[1]]);
  }

  // Text with its spaces, which MathML would drop at both ends.
  function text(kind, name = "mtext") {
    const words = raw();
    const space = () => math("mspace", { width: "0.28em" });
    const inner = math(name, { class: kind, ...(name === "mi" ? { mathvariant: "normal" } : {}) }, words.trim().replace(/\s+/g, " "));
    return group([...(/^\s/.test(words) ? [space()] : []), inner, ...(/\S\s+$/.test(words) ? [space()] : [])]);
  }

  function command(name, token) {
    if (IDENTIFIERS.has(name)) return math("mi", /^[A-Z]/.test(name) ? { mathvariant: "normal" } : {}, IDENTIFIERS.get(name));
    if (OPERATORS.has(name)) return math("mo", {}, OPERATORS.get(name));
    if (BIG.has(name)) return math("mo", { movablelimits: true }, BIG.get(name));
    if (WITH_LIMITS.has(name)) return math("mo", { movablelimits: true, lspace: 0, rspace: "0.17em" }, name);
    if (FUNCTIONS.has(name)) return math("mo", { lspace: 0, rspace: "0.17em" }, name);
    if (SPACES.has(name)) return math("mspace", { width: SPACES.get(name) });
    if (/^\s/.test(name)) return math("mspace", { width: "0.28em" });
    if (DELIMITERS.has(token)) return fence(DELIMITERS.get(token), false);
    if (TEXTS.has(name)) return text(name === "textbf" ? "bold" : "", /^(mathrm|operatorname)$/.test(name) ? "mi" : "mtext");
    if (IGNORED.has(name)) return math("mrow");
    if (/^[dtc]?frac$/.test(name)) return math("mfrac", name === "dfrac" ? { displaystyle: true } : {}, argument(), argument());
    if (/^[dt]?binom$/.test(name)) {
      return group([fence("(", true), math("mfrac", { linethickness: 0 }, argument(), argument()), fence(")", true)]);
    }
    if (name === "sqrt") {
      if (peek() !== "[") return math("msqrt", {}, argument());
      next();
      const index = row("]");
      expect("]");
      return math("mroot", {}, argument(), index);
    }
    if (ACCENTS.has(name)) {
      const isUnder = name.startsWith("under");
      const sign = math("mo", { stretchy: !["hat", "bar", "vec", "tilde", "dot", "ddot"].includes(name) }, ACCENTS.get(name));
      const kind = name.endsWith("brace") ? "brace" : "";
      return math(isUnder ? "munder" : "mover", { [isUnder ? "accentunder" : "accent"]: true, class: kind }, argument(), sign);
    }
    if (/^(overset|stackrel|underset)$/.test(name)) {
      const [small, base] = [argument(), argument()];
      return math(name === "underset" ? "munder" : "mover", {}, base, small);
    }
    if (name === "left") {
      const open = fence(delimiter(), true);
      const inner = row();
      expect("\\right");
      return group([open, inner, fence(delimiter(), true)]);
    }
    if (name === "middle") return fence(delimiter(), true);
    if (/^[bB]igg?[lrm]?$/.test(name)) return fence(delimiter(), false);
    if (name === "begin") return environment();
    if (name === "boxed" || name === "fbox") return math("mrow", { class: "boxed" }, argument());
    if (name === "pmod") return group([math("mspace", { width: "0.5em" }), math("mtext", {}, "(mod "), math("mspace", { width: "0.28em" }), argument(), fence(")", false)]);
    if (name === "bmod" || name === "mod") return math("mo", { lspace: "0.22em", rspace: "0.22em" }, "mod");
    if (name === "not") return math("mo", {}, `${atom().textContent}\u0338`.normalize("NFC")); // a stroke through it
    if (name === "mathop") return argument();
    if (name === "tag") return group([math("mspace", { width: "2em" }), math("mtext", {}, `(${raw()})`)]);
    if (name === "phantom") return math("mphantom", {}, argument());
    if (STYLES.has(name)) {
      const inner = argument();
      if (name === "mathbb") {
        const letter = /^[A-Z]$/.test(inner.textContent) ? inner.textContent : fail();
        const sign = BOARD.get(letter) ?? String.fromCodePoint(0x1d538 + letter.charCodeAt(0) - 65);
        return math("mi", { mathvariant: "normal" }, sign);
      }
      return math("mrow", { class: /^(mathbf|boldsymbol|bold|bm|pmb)$/.test(name) ? "bold" : "" }, inner);
    }
    return fail();
  }

  const all = rows("aligned");
  if (at < tokens.length && peek() !== undefined) fail();
  const cells = all.querySelectorAll(":scope > mtr > mtd");
  return cells.length === 1 ? group([...cells[0].childNodes]) : all;
}

// Formulas in text, and before them what looks like one and is none: a line break, a dollar sign, a drawing.
const FORMULA = new RegExp(
  [
    String.raw`\\\\(?![[(])|\\\$|\[asy\][^]*?(?:\[/asy\]|$)`,
    String.raw`\$\$([^$]+)\$\$|\\\[([^]+?)\\\]`,
    String.raw`(\\begin\{((?:align|equation|gather|multline|eqnarray)\*?)\}[^]+?\\end\{\4\})`,
    String.raw`\\\(([^]+?)\\\)|\$((?:\\[^]|[^$\\])+)\$(?!\d)|(?=\\boxed\{)`,
  ].join("|"),
  "g",
);

// Whether what stands between two dollar signs is no formula but the text between two prices.
function isProse(source) {
  if (/[=+*/(-]\s*$|^\s*\n|<</.test(source)) return true; // $4 + $4 = $<<4+4=8>>8
  const bare = source.replace(/\\[a-zA-Z]+\s*(?:\{[^{}]*\})?/g, " ");
  if (/^\s|\s$/.test(source)) return /^[\d\s.,]+$/.test(source) || /(?<![a-zA-Z])[a-z]{2,}/.test(bare);
  return /(?<![a-zA-Z])[a-z]{2,}[,;]?\s+[a-z]{2,}(?![a-zA-Z])/.test(bare);
}

// Where the group that opens at the first brace from start on ends; 0 where it does not.
function groupEnd(text, start) {
  let open = 0;
  for (let i = start; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "{") open++;
    else if (text[i] === "}" && --open === 0) return i + 1;
  }
  return 0;
}

// Replaces the formulas in an element of text; whatever cannot be read stays as it is.
function renderMath(host) {
  if (!("MathMLElement" in window)) return;
  const text = host.textContent;
  const parts = [];
  let done = 0;
  FORMULA.lastIndex = 0;
  for (let match; (match = FORMULA.exec(text)) !== null; ) {
    const [whole, dollars, brackets, environment, , parens, dollar] = match;
    const start = match.index;
    const end = whole ? start + whole.length : groupEnd(text, start);
    const source = whole ? dollars ?? brackets ?? environment ?? parens ?? dollar : text.slice(start, end);
    if (!whole) FORMULA.lastIndex = start + 1;
    if (source === undefined || source === "") continue;
    FORMULA.lastIndex = start + 1; // where it is no formula, a later sign may open one
    if (/\n\s*\n/.test(source) || (dollar !== undefined && isProse(dollar))) continue;
    FORMULA.lastIndex = end;
    try {
      const isBlock = dollars !== undefined || brackets !== undefined || environment !== undefined;
      const attributes = { title: text.slice(start, end).replace(/\s+/g, " "), ...(isBlock ? { display: "block" } : {}) };
      const formula = math("math", attributes, parseMath(source));
      parts.push(text.slice(done, start), formula);
      done = end;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
  if (parts.length) host.replaceChildren(...parts, text.slice(done));
}
