// The page: no framework, no build step, no request to anywhere but this server.
const $ = (id) => document.getElementById(id);
const THUMBS = 8; // small pictures shown of a class that waits
const AT_ONCE = { files: 16, bytes: 24 << 20 }; // of one upload
let about = null;
const thumbs = new Map(); // class -> addresses of small pictures

// Asking the server. The token stays in this tab, and travels in a header: never in an address, never in a cookie.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname);
}

async function request(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body && !(body instanceof FormData)) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body && !(body instanceof FormData) ? JSON.stringify(body) : body });
  if (answer.ok) return answer;
  if (answer.status === 401) askToken();
  const { error } = await answer.json().catch(() => ({ error: { message: `The server answered ${answer.status}.` } }));
  throw Object.assign(new Error(error.message), { status: answer.status });
}
const json = async (method, path, body) => (await request(method, path, body)).json();

let quiet = 0;
function say(words, bad = false) {
  $("status").textContent = words;
  $("status").classList.toggle("bad", bad);
  clearTimeout(quiet);
  if (!bad) quiet = setTimeout(() => { $("status").textContent = ""; }, 10_000);
}

async function attempt(work) { // whatever fails is said on the page
  try { await work(); } catch (error) {
    if (error.status !== 401) say(error instanceof TypeError ? "The server cannot be reached." : sentence(error.message), true);
  }
}
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function askToken() {
  const wrong = sessionStorage.getItem("token") !== null;
  sessionStorage.removeItem("token");
  $("login").hidden = false;
  $("main").hidden = true;
  $("token").focus();
  if (wrong) say("That token is not the server's.", true);
}
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  attempt(refresh);
});

// Building elements: text is always text, never HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const many = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;
const percent = (share) => `${(100 * share).toFixed(share > 0.0995 ? 0 : 1)} %`;
const when = (utc) => utc ? new Date(`${utc.replace(" ", "T")}Z`).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "";

// What the server knows.
async function refresh() {
  about = await json("GET", "/classes");
  $("login").hidden = true;
  $("main").hidden = false;
  say("");
  show();
  if (about.learning) await follow(about.learning);
}

function show() {
  const known = about.classes.length, changes = !about.read_only && about.learns;
  $("model").textContent = about.model;
  document.title = `${about.model} – afaf`;
  $("about").textContent = (known ? many(known, "class", "classes") : "knows nothing yet")
    + (about.encoder ? `, encoder ${about.encoder}` : ", a network trained from scratch")
    + (about.room === null ? "" : `, room for ${many(about.room, "more call")}`) + (about.read_only ? ", read-only" : "");
  $("teach").hidden = !changes;
  $("asking").hidden = !known;
  $("nothing").hidden = known > 0;
  $("undo").hidden = !about.undo;
  $("empty").hidden = $("more").hidden = known > 0;
  $("more").hidden = !known;
  $("known-names").replaceChildren(...about.classes.map(({ name }) => make("option", { value: name })));
  showWaiting();
  showCalls(changes);
  showConfused();
  $("onnx-note").textContent = about.encoder === null ? "" : "The ONNX file holds the encoder too; the model file only names it.";
}

function showWaiting() {
  const names = Object.keys(about.waiting).sort(), busy = about.learning !== null;
  $("waiting-title").hidden = !names.length;
  $("learn").disabled = !names.length || busy;
  $("learn").textContent = names.length ? `Teach ${many(names.length, "class", "classes")}` : "Teach";
  $("waiting").replaceChildren(...names.map((name) => make("li", {},
    make("span", {}, make("b", {}, name), make("span", { class: "quiet" }, ` ${many(about.waiting[name], "photo")}`)),
    make("button", { type: "button", class: "small", "aria-label": `Discard the photos of ${name}`, onclick: () => discard(name) }, "Discard"),
    make("span", { class: "thumbs" }, ...(thumbs.get(name) ?? []).map((src) => make("img", { src, alt: "" }))))));
}

function showCalls(changes) {
  $("calls").replaceChildren(...[...about.calls].reverse().map((call) => make("li", {},
    make("div", {}, make("b", {}, `Call ${call.call}`), make("span", { class: "quiet" },
      ` ${[when(call.learned), call.images ? many(call.images, "photo") : "", call.accuracy === null ? ""
        : `${call.accuracy.toFixed(0)} % of ${call.held_out} held-out right`].filter(Boolean).join(" · ")}`)),
    call.classes.length ? make("ul", {}, ...call.classes.map((name) => classRow(name, changes)))
      : make("p", { class: "quiet small" }, "No class of its own: more photos of known classes, or its classes were removed."))));
}

function classRow(name, changes) {
  const images = about.classes.find((row) => row.name === name)?.images;
  const button = (words, onclick) => make("button", { type: "button", class: "small", "aria-label": `${words} ${name}`, onclick }, words);
  return make("li", {}, make("span", { class: "who" }, make("b", {}, name), images ? make("span", { class: "quiet small" }, ` ${many(images, "photo")}`) : null),
    changes ? make("span", { class: "row" }, button("Rename", () => rename(name)),
      about.classes.length > 1 ? button("Remove", () => remove(name)) : null) : null);
}

function showConfused() {
  const pairs = about.confused;
  $("confused-note").textContent = pairs === null
    ? (about.encoder === null ? "A network keeps nothing of its photos: afaf evaluate tells, with test photos." : "Too few photos were held out to tell: about 110 are needed in all.")
    : pairs.length ? "Estimated from held-out photos:" : "Hardly anything, by its held-out photos.";
  $("confused").replaceChildren(...(pairs ?? []).slice(0, 8).map((pair) =>
    make("li", {}, make("b", {}, pair.class), ` taken for ${pair.taken_for}: ${percent(pair.share)}`)));
}

// Files: from a chooser, dropped, or from the camera. A folder gives its photos its own name as their class.
const isImage = (file) => file.type.startsWith("image/") || /\.(png|jpe?g|bmp|gif|webp|tiff?|p[pgb]m|hei[cf])$/i.test(file.name);
const folderOf = (path) => path.split("/").filter(Boolean).slice(0, -1).pop() ?? null;

async function droppedFiles(transfer) {
  const found = [];
  async function walk(entry) {
    if (entry.isFile) {
      const file = await new Promise((done, failed) => entry.file(done, failed));
      found.push({ file, folder: folderOf(entry.fullPath) });
    } else {
      const reader = entry.createReader();
      for (let some; (some = await new Promise((done, failed) => reader.readEntries(done, failed))).length;)
        for (const each of some) await walk(each);
    }
  }
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, folder: null }));
  for (const entry of entries) await walk(entry);
  return found;
}

function take(what, files) {
  const images = files.filter(({ file }) => isImage(file));
  return attempt(async () => {
    if (!images.length) throw new Error("there is no photo among these files");
    await (what === "ask" ? ask(images.map(({ file }) => file)) : collect(images));
  });
}

for (const label of document.querySelectorAll("label[data-for]")) {
  const input = label.querySelector("input"), what = label.dataset.for;
  input.addEventListener("change", async () => {
    const files = [...input.files].map((file) => ({ file, folder: folderOf(file.webkitRelativePath || "") }));
    await take(what, files);
    input.value = "";
  });
  label.addEventListener("dragover", (event) => { event.preventDefault(); label.classList.add("over"); });
  label.addEventListener("dragleave", () => label.classList.remove("over"));
  label.addEventListener("drop", async (event) => {
    event.preventDefault();
    label.classList.remove("over");
    await take(what, await droppedFiles(event.dataTransfer));
  });
}
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault()); // a file dropped beside does not replace the page

function* uploads(files) {
  let some = [], bytes = 0;
  for (const file of files) {
    if (some.length && (some.length === AT_ONCE.files || bytes + file.size > AT_ONCE.bytes)) { yield some; some = []; bytes = 0; }
    some.push(file);
    bytes += file.size;
  }
  if (some.length) yield some;
}

function form(files) {
  const body = new FormData();
  files.forEach((file, number) => body.append("images", file, `image-${number}`));
  return body;
}

// Teaching.
async function collect(images) {
  const typed = $("name").value.trim(), classes = new Map();
  for (const { file, folder } of images) {
    const name = folder ?? typed;
    if (!name) { $("name").focus(); throw new Error("name the class first"); }
    classes.set(name, [...(classes.get(name) ?? []), file]);
  }
  let done = 0;
  for (const [name, files] of classes) {
    for (const some of uploads(files)) {
      say(`Sending photo ${done + 1} of ${images.length} …`);
      await json("POST", `/classes/${encodeURIComponent(name)}/images`, form(some));
      done += some.length;
    }
    const small = thumbs.get(name) ?? [];
    for (const file of files.slice(0, THUMBS - small.length)) small.push(URL.createObjectURL(file));
    thumbs.set(name, small);
  }
  about = await json("GET", "/classes");
  show();
  say(`${many(images.length, "photo")} ready to learn.`);
}

async function discard(name) {
  await attempt(async () => {
    await request("DELETE", `/classes/${encodeURIComponent(name)}/images`);
    forgetThumbs(name);
    about = await json("GET", "/classes");
    show();
  });
}
function forgetThumbs(name) {
  (thumbs.get(name) ?? []).forEach((address) => URL.revokeObjectURL(address));
  thumbs.delete(name);
}

$("learn").addEventListener("click", () => attempt(async () => {
  $("learned").hidden = true;
  say("");
  const job = await json("POST", "/learn");
  [...thumbs.keys()].forEach(forgetThumbs);
  about.waiting = {};
  about.learning = job.id;
  $("name").value = "";
  showWaiting();
  await follow(job.id);
}));
$("cancel").addEventListener("click", () => attempt(() => request("DELETE", "/learn")));

const STAGES = { starting: "Starting", learning: "Learning", writing: "Writing the model", loading: "Loading the new model" };

async function follow(id) {
  $("progress").hidden = $("cancel").hidden = false;
  $("learned").hidden = true;
  let job = null;
  try {
    const reader = (await request("GET", `/jobs/${id}/events`)).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "", part; !(part = await reader.read()).done;) {
      text += part.value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events.filter((one) => one.startsWith("data: "))) showJob(job = JSON.parse(event.slice(6)));
    }
  } finally {
    $("progress").hidden = $("cancel").hidden = true;
  }
  about = await json("GET", "/classes");
  show();
  if (job?.state === "done") showLearned(job);
  else if (job) say(sentence(job.error?.message ?? "nothing was learned"), true);
}

function showJob(job) {
  $("bar").max = job.total || 1;
  if (job.stage === "learning") $("bar").value = job.done; else $("bar").removeAttribute("value");
  $("stage").textContent = `${STAGES[job.stage] ?? "Done"}${job.stage === "learning" ? `: ${job.done} of ${many(job.total, job.unit.slice(0, -1).replace("image", "photo"))}` : " …"}`;
}

function showLearned({ learned, classes, warnings, seconds }) {
  const right = learned.accuracy === null ? "Too few photos to hold any out, so the accuracy is not known."
    : `${learned.accuracy.toFixed(0)} % of ${many(learned.held_out, "held-out photo")} are right.`;
  const told = [...(learned.warnings ?? []), ...warnings].map((words) => make("p", { class: "small" }, sentence(words) + "."));
  $("learned").replaceChildren(make("p", {}, make("b", {}, `Learned ${Object.keys(classes).join(", ")}`), ` in ${seconds.toFixed(1)} s.`), make("p", {}, right), ...told);
  $("learned").hidden = false;
  say(`Learned ${Object.keys(classes).join(", ")}. ${right}`);
}

// Asking.
async function ask(files) {
  let done = 0;
  for (const some of uploads(files)) {
    say(`Asking about photo ${done + 1} of ${files.length} …`);
    const { answers } = await json("POST", "/predict?top=3", form(some));
    $("answers").prepend(...answers.map((answer, k) => answerRow(answer, some[k])));
    while ($("answers").children.length > 50) forgetAnswer($("answers").lastChild);
    done += some.length;
  }
  say("");
}
function forgetAnswer(row) {
  URL.revokeObjectURL(row.querySelector("img").src);
  row.remove();
}

function answerRow(answer, file) {
  const best = answer.top[0];
  const bars = answer.top.flatMap(({ label, probability }) => [make("dt", { title: label }, label),
    make("dd", {}, make("meter", { min: 0, max: 1, value: probability, "aria-label": `${label}: ${percent(probability)}` })),
    make("dd", {}, percent(probability))]);
  return make("li", {}, make("img", { src: URL.createObjectURL(file), alt: `Photo ${file.name}` }), make("div", {},
    make("p", { class: answer.unknown ? "label unknown" : "label" }, answer.unknown ? "none of these" : best.label),
    answer.unknown ? make("p", { class: "quiet small" }, "It is like no taught class. Among them, it would be:") : null,
    make("dl", { class: "bars" }, ...bars), make("p", { class: "quiet small" }, reason(answer))));
}

function reason({ unknown, unknown_above: limit, nearest }) {
  if (!nearest?.length) return "";
  const far = nearest.slice(0, 3).map(({ label, distance }) => `${label} ${(distance / (limit ?? 1)).toFixed(2)}`).join(", ");
  return limit ? `Distance from the nearest taught classes, none of these above 1: ${far}.`
    : `Distance from the nearest taught classes: ${far}.${unknown === null ? " Too few photos were held out to call one none of these." : ""}`;
}

// Changing.
function question(title, text, button, value = null) {
  $("question-title").textContent = title;
  $("question-text").textContent = text;
  $("yes").textContent = button;
  $("answer-label").hidden = value === null;
  $("answer").required = value !== null;
  $("answer").value = value ?? "";
  $("question").returnValue = "";
  $("question").showModal();
  if (value !== null) $("answer").select();
  return new Promise((done) => {
    $("question").onclose = () => { // the event of an earlier question may come when this one is open
      if (!$("question").open) done($("question").returnValue === "yes" ? $("answer").value.trim() || true : null);
    };
  });
}

async function change(method, path, body, words) {
  await attempt(async () => {
    await request(method, path, body);
    about = await json("GET", "/classes");
    show();
    say(words);
  });
}
async function rename(name) {
  const answer = await question(`Rename ${name}`, "", "Rename", name);
  if (answer && answer !== name) await change("PATCH", `/classes/${encodeURIComponent(name)}`, { name: answer }, `${name} is now called ${answer}.`);
}
async function remove(name) {
  const text = "It will be no answer any more. You can undo this as long as nothing else is changed.";
  if (await question(`Remove ${name}?`, text, "Remove")) await change("DELETE", `/classes/${encodeURIComponent(name)}`, null, `${name} is removed.`);
}
$("undo").addEventListener("click", async () => {
  if (await question("Undo the last change?", "The model goes back to what it was before the last call, rename or removal. This cannot be undone.", "Undo"))
    await change("POST", "/undo", null, "The last change is undone.");
});

// Downloads go through fetch, for the token's sake.
for (const button of document.querySelectorAll("[data-download]")) {
  button.addEventListener("click", () => attempt(async () => {
    say("Preparing the download …");
    const address = URL.createObjectURL(await (await request("GET", button.dataset.download)).blob());
    make("a", { href: address, download: button.dataset.file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
    say("");
  }));
}

// The camera, where the browser allows it; elsewhere a button that opens the phone's own.
const hasCamera = Boolean(navigator.mediaDevices?.getUserMedia);
document.querySelectorAll("[data-camera]").forEach((button) => { button.hidden = !hasCamera; });
document.querySelectorAll(".narrow").forEach((label) => { label.hidden = hasCamera; });
let shooting = null;
for (const button of document.querySelectorAll("[data-camera]")) {
  button.addEventListener("click", () => attempt(async () => {
    if (button.dataset.camera === "teach" && !$("name").value.trim()) { $("name").focus(); throw new Error("name the class first"); }
    try {
      $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      document.querySelectorAll(".narrow").forEach((label) => { label.hidden = false; });
      throw new Error("the browser gives no camera: choose photos instead");
    }
    shooting = { what: button.dataset.camera, count: 0 };
    $("shots").textContent = "";
    $("shoot").disabled = true;
    $("camera").showModal();
  }));
}
$("video").addEventListener("playing", () => { $("shoot").disabled = false; });
$("shoot").addEventListener("click", async () => {
  const video = $("video"), canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  shooting.count += 1;
  $("shots").textContent = `${many(shooting.count, "photo")} taken`;
  await take(shooting.what, [{ file: new File([blob], `photo-${shooting.count}.jpg`, { type: "image/jpeg" }), folder: null }]);
});
$("close-camera").addEventListener("click", () => $("camera").close());
$("camera").addEventListener("close", () => {
  $("video").srcObject?.getTracks().forEach((track) => track.stop());
  $("video").srcObject = null;
});

attempt(refresh);
