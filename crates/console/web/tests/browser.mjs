// Opens the console in Chromium and checks each view. The caller has started a cluster and passes the link, the names of
// pods, and a command that applies YAML.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const { CONSOLE_LINK: link, CONSOLE_APPLY: apply, CONSOLE_SHOTS: shots, CONSOLE_PODS: pods } = process.env;
const [client, server] = pods.split(",");
const origin = new URL(link).origin;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
mkdirSync(shots, { recursive: true });

const VIEWS = {
  "/": "Overview",
  "/map": "Map",
  "/flows": "Flows",
  "/policies": "Policy board",
  [`/explain?from=${encodeURIComponent(client)}&to=${encodeURIComponent(server)}&port=tcp%2F80`]: "Explain",
  "/what-if": "What if",
  "/routes": "Routes and addresses",
  "/nodes": "Nodes",
};
const SIZES = { wide: { width: 1280, height: 900 }, narrow: { width: 390, height: 844 } };

const browser = await chromium.launch({
  executablePath: process.env.CONSOLE_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});
const context = await browser.newContext({ viewport: SIZES.wide, colorScheme: "light" });
const problems = [];
context.on("request", (request) => {
  if (new URL(request.url()).origin !== origin) problems.push(`request to ${request.url()}`);
});
context.on("console", (message) => {
  if (message.type() === "error") problems.push(`console: ${message.text()}`);
});
context.on("weberror", (error) => problems.push(`error: ${error.error().message}`));
context.on("dialog", (dialog) => problems.push(`dialog: ${dialog.message()}`));
const page = await context.newPage();
page.setDefaultTimeout(30_000);

async function open(target, path) {
  await target.goto(origin + path);
  await settle(target);
}

/** Waits until the view has shown what it loads. */
async function settle(target) {
  await target.locator("main#content h1").waitFor();
  await target.waitForFunction(() => !document.querySelector("main")?.textContent.includes("Loading \u2026"));
}

async function check(name, run) {
  const started = Date.now();
  await run();
  assert.deepEqual(problems, [], name);
  console.log(`ok ${name} (${Date.now() - started} ms)`);
}

async function findings() {
  await page.evaluate(axe);
  const result = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = result.violations.filter((found) => ["serious", "critical"].includes(found.impact));
  return serious.map((found) => `${found.id}: ${found.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
}

await check("the link signs in and is not kept", async () => {
  await page.goto(link);
  await settle(page);
  assert.equal(page.url(), `${origin}/`);
  const [cookie, ...others] = await context.cookies();
  assert.deepEqual(others, []);
  assert.ok(cookie.httpOnly);
  assert.equal(cookie.sameSite, "Strict");
  assert.equal(await page.evaluate(() => document.cookie), "");
});

await check("views are accessible in both sizes and colour schemes", async () => {
  for (const [size, scheme] of [["wide", "light"], ["narrow", "dark"]]) {
    await page.setViewportSize(SIZES[size]);
    await page.emulateMedia({ colorScheme: scheme });
    for (const [path, title] of Object.entries(VIEWS)) {
      await open(page, path);
      assert.equal(await page.locator("h1").innerText(), title);
      const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
      assert.ok(width <= SIZES[size].width, `${title} is ${width} pixels wide in ${SIZES[size].width}`);
      await page.screenshot({ path: join(shots, `${title.split(" ")[0].toLowerCase()}-${size}-${scheme}.png`), fullPage: true });
      assert.deepEqual(await findings(), [], `${title}, ${size}, ${scheme}`);
    }
  }
  await page.setViewportSize(SIZES.wide);
  await page.emulateMedia({ colorScheme: "light" });
});

await check("every view is reached with the keyboard", async () => {
  await open(page, "/nodes");
  for (const title of Object.values(VIEWS)) {
    // The links are in the order of the tab key; the heading has the focus after navigation.
    const label = title.startsWith("Routes") ? "Routes" : title;
    let found = false;
    for (let presses = 0; presses < 14 && !found; presses += 1) {
      await page.keyboard.press("Tab");
      found = (await page.evaluate(() => document.activeElement?.textContent)) === label;
    }
    assert.ok(found, `no link ${label}`);
    await page.keyboard.press("Enter");
    await page.waitForFunction((text) => document.activeElement?.tagName === "H1" && document.activeElement.textContent === text, title);
    await page.goto(page.url());
    await settle(page);
  }
});

await check("a question is asked and shared", async () => {
  await open(page, "/explain");
  await page.getByLabel("From", { exact: true }).focus();
  await page.keyboard.type(client);
  await page.keyboard.press("Tab");
  await page.keyboard.type(server);
  await page.keyboard.press("Tab");
  await page.keyboard.type("tcp/80");
  await page.keyboard.press("Enter");
  await page.locator(".verdict-banner").getByText("denied").waitFor();
  const shared = await context.newPage();
  await open(shared, page.url().slice(origin.length));
  await shared.locator(".verdict-banner").getByText("denied").waitFor();
  await shared.close();
  await page.goBack();
  await page.waitForURL(`${origin}/explain`);
  assert.equal(await page.locator(".verdict-banner").count(), 0);
});

await check("filters are in the address", async () => {
  await open(page, "/policies");
  await page.getByLabel("Filter").fill("no such policy");
  await page.waitForURL(/q=no\+such\+policy/);
  assert.equal(await page.locator("details.policy:visible").count(), 0);
  await page.reload();
  await settle(page);
  assert.equal(await page.getByLabel("Filter").inputValue(), "no such policy");
  assert.equal(await page.locator("details.policy:visible").count(), 0);
  await page.getByLabel("Filter").fill("");
  await page.locator("details.policy").first().waitFor();
});

await check("the board follows the datastore", async () => {
  await open(page, "/policies");
  const policy = (port) => `apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: allow-web}
spec: {selector: app == 'web', order: 5, types: [Ingress], ingress: [{action: Allow, protocol: TCP, destination: {ports: [${port}]}}]}
`;
  const result = spawnSync("sh", ["-c", apply], { input: policy(8080), encoding: "utf8" });
  assert.equal(result.status, 0, result.stderr);
  const entry = page.locator("details.policy", { hasText: "allow-web" });
  await entry.locator("summary").focus();
  await page.keyboard.press("Enter");
  await entry.getByText("port 8080").waitFor();
});

await check("a change is checked and compared before it is applied", async () => {
  await open(page, "/what-if");
  const area = page.getByLabel("Objects of projectcalico.org/v3");
  const policy = (action) => `apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: allow-web}
spec:
  selector: app == 'web'
  order: 5
  types: [Ingress]
  ingress: [{action: ${action}, protocol: TCP, destination: {ports: [80]}}]
`;
  await area.fill(policy("Alow"));
  await page.getByRole("heading", { name: /Mistakes/ }).waitFor();
  await page.getByRole("region", { name: "Mistakes" }).getByText("Alow").first().waitFor();
  await area.fill(policy("Allow"));
  await page.getByText("1 object, no mistakes").waitFor();
  await page.getByRole("button", { name: "Show what changes" }).press("Enter");
  const changes = page.getByRole("region", { name: "Verdicts that change" });
  await changes.getByText("tcp/80", { exact: true }).first().waitFor();
  assert.ok((await changes.innerText()).includes("allowed"));
  const shared = await context.newPage();
  await open(shared, page.url().slice(origin.length));
  assert.equal(await shared.getByLabel("Objects of projectcalico.org/v3").inputValue(), policy("Allow"));
  await shared.close();
  await page.screenshot({ path: join(shots, "what-if-changes.png"), fullPage: true });
});

await check("hostile names are text", async () => {
  await open(page, "/nodes");
  const card = page.locator(".card", { hasText: "Warnings of" });
  await card.first().waitFor();
  const text = await card.first().innerText();
  assert.ok(text.includes("<script>window.pwned = 1</script>"), text);
  assert.ok(text.includes("\u27e8U+202E\u27e9"), text);
  assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
  await open(page, "/policies?q=aaaaaaaaaaaaaaaa");
  await page.locator("details.policy", { hasText: "a".repeat(200) }).waitFor();
  for (const size of Object.values(SIZES)) {
    await page.setViewportSize(size);
    assert.ok((await page.evaluate(() => document.scrollingElement.scrollWidth)) <= size.width);
  }
  await page.setViewportSize(SIZES.wide);
  await open(page, "/explain?from=%3Cscript%3Ealert(1)%3C%2Fscript%3E&to=x&port=80").catch(() => {});
  await page.getByRole("alert").getByText("<script>alert(1)</script>").waitFor();
  // A question that cannot be answered is a response with an error status, which Chromium logs.
  const logged = problems.splice(0).filter((problem) => !problem.includes("422"));
  assert.deepEqual(logged, []);
});

await check("flows and the map show what the collector has", async () => {
  await open(page, "/flows");
  await page.getByRole("region", { name: "Flows" }).getByText("shop/db").first().waitFor();
  await page.getByLabel("Verdict").selectOption("denied");
  await page.waitForURL(/verdict=denied/);
  const rows = page.getByRole("region", { name: "Flows" }).locator("tbody tr");
  assert.equal(await rows.count(), 1);
  await rows.getByRole("button", { name: "Details" }).press("Enter");
  await page.getByRole("link", { name: "Explain" }).last().waitFor();
  await page.goBack();
  await page.waitForFunction(() => !location.search.includes("denied"));
  await open(page, "/map");
  const box = page.getByRole("button", { name: "Show the workloads of shop" });
  await box.focus();
  await page.keyboard.press("Enter");
  await page.waitForURL(/namespace=shop/);
  await page.getByRole("region", { name: "Traffic between the boxes" }).getByText("shop/db").first().waitFor();
});

await check("without a session nothing is shown", async () => {
  const stranger = await browser.newContext();
  const other = await stranger.newPage();
  await other.goto(`${origin}/policies`);
  await other.getByText("Open the newest link").waitFor();
  const used = await stranger.newPage();
  await used.goto(link);
  await used.getByText("was used already").waitFor();
  await stranger.close();
});

await browser.close();
