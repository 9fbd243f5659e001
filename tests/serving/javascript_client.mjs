// The checks of test_other_languages.py: node javascript_client.mjs CLIENT ADDRESS TOKEN, against a FakeServer.
import assert from "node:assert/strict";

const [client, address, token] = process.argv.slice(2);
const { EpisodeLostError, PolicyClient, RequestError } = await import(client);
const OBS = new Float32Array([0.5, -0.25]);
const VERBS = ["start_episode", "get_action", "log_returns", "get_action", "log_returns", "end_episode"];

/** Sets the server's faults, and returns what has happened since the last call. */
async function arrange(options = {}) {
  const http = new URL(process.argv[5] ?? address);
  http.protocol = http.protocol.replace("ws", "http");
  const headers = { Authorization: `Bearer ${token}` };
  const response = await fetch(new URL("/v1/arrange", http), { method: "POST", headers, body: JSON.stringify(options) });
  return response.json();
}

async function play(client, steps = 2) {
  const episode = await client.startEpisode();
  const actions = [];
  for (let step = 0; step < steps; step++) {
    actions.push(await client.getAction(episode, OBS));
    client.logReturns(episode, 1.5, { step }); // the next request of the episode waits for it
  }
  await client.endEpisode(episode, OBS, { truncated: true });
  return actions;
}

const checks = {
  async "plays an episode"() {
    const one = new PolicyClient(address, { token });
    assert.equal((await one.hello()).server, "fake");
    assert.deepEqual(await play(one), [0, 1]);
    assert.equal(one.version, 1);
    one.close();
    assert.deepEqual((await arrange()).executed, VERBS);
  },

  async "has no time limit if it is infinite"() {
    const one = new PolicyClient(address, { token, timeout: Infinity });
    const late = new Promise((resolve) => setTimeout(resolve, 5000, []).unref());
    assert.deepEqual(await Promise.race([play(one), late]), [0, 1]);
    one.close();
  },

  async "survives any fault at any request"() {
    const busy = [429, { error: { id: "e", what: "Too many." } }, { "Retry-After": "0.01" }];
    const starting = [503, { error: { id: "e", what: "Starting." } }, {}];
    for (const fault of ["drop before", "drop after", busy, starting]) {
      for (let failing = 0; failing < VERBS.length; failing++) {
        await arrange({ faults: [...Array(failing).fill(null), fault] });
        const one = new PolicyClient(address, { token });
        assert.deepEqual(await play(one), [0, 1]);
        one.close();
        const { executed, requests } = await arrange();
        assert.deepEqual(executed, VERBS, `${fault} at ${failing}`);
        assert.equal(requests.length, 1 + VERBS.length + 1); // after "hello"
      }
    }
  },

  async "plays many episodes at once"() {
    const one = new PolicyClient(address, { token });
    await arrange({ faults: [null, "drop after", null, "drop before"] });
    assert.deepEqual(await Promise.all(Array.from({ length: 8 }, () => play(one, 4))), Array(8).fill([0, 1, 2, 3]));
    const ids = await Promise.all([one.startEpisode(), one.startEpisode({ episodeId: "mine" })]);
    assert.equal(ids[1], "mine");
    assert.deepEqual(await one.getActions({ [ids[0]]: OBS, mine: OBS }), { [ids[0]]: 0, mine: 0 });
    one.close();
  },

  async "requests are executed in the order of the calls, also if the first one is repeated"() {
    const one = new PolicyClient(address, { token });
    await one.hello();
    await arrange({ faults: ["drop before"] });
    const calls = [one.startEpisode({ episodeId: "mine" }), one.getAction("mine", OBS), one.endEpisode("mine", OBS)];
    assert.deepEqual(await Promise.all(calls), ["mine", 0, undefined]);
    one.close();
  },

  async "an episode that the server has lost is an EpisodeLostError, and the next one continues"() {
    const one = new PolicyClient(address, { token });
    const episode = await one.startEpisode();
    await arrange({ forget: true });
    await assert.rejects(one.getAction(episode, OBS), (error) => {
      assert(error instanceof EpisodeLostError);
      assert.equal(error.status, 404);
      assert.equal(error.errorId, "e1");
      assert.match(error.message, /not known/);
      return true;
    });
    assert.deepEqual(await play(one), [0, 1]);
    one.close();
  },

  async "a refusal has the text of the server and is not repeated"() {
    const one = new PolicyClient(address, { token });
    const episode = await one.startEpisode();
    await arrange({ faults: [[422, { error: { id: "e", what: "Bad value.", where: "obs", fix: "Send another." } }, {}]] });
    await assert.rejects(one.getAction(episode, OBS), (error) => {
      assert(!(error instanceof EpisodeLostError));
      assert.match(error.message, /Bad value\.\n {2}where: {4}obs\n {2}fix: {6}Send another\./);
      return true;
    });
    assert.deepEqual((await arrange()).requests, ["get_action"]);
    one.close();
  },

  async "a server that stays busy is an error with its text"() {
    const one = new PolicyClient(address, { token });
    await arrange({ faults: [[429, { error: { id: "e", what: "Too many." } }, { "Retry-After": "1000" }]] });
    await assert.rejects(one.startEpisode(), { name: "RequestError", status: 429, retryAfter: 1000 });
    one.close();
  },

  async "a date in Retry-After does not repeat the request at once"() {
    const one = new PolicyClient(process.argv[5], { token, timeout: 500 });
    await one.hello();
    const down = [503, { error: { id: "e", what: "Down." } }, { "Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT" }];
    await arrange({ faults: Array(200).fill(down) });
    await assert.rejects(one.startEpisode(), { status: 503, retryAfter: null });
    assert((await arrange()).requests.length < 10);
    one.close();
  },

  async "numbers that are not finite are refused before sending"() {
    const one = new PolicyClient(address, { token });
    const episode = await one.startEpisode();
    await arrange();
    await assert.rejects(one.getAction(episode, [NaN, 0]), /not finite/);
    assert.deepEqual((await arrange()).requests, []);
    assert.equal(await one.getAction(episode, [0, 0]), 0);
    one.close();
  },

  async "a request that is larger than the server accepts is refused before sending"() {
    const one = new PolicyClient(address, { token });
    const episode = await one.startEpisode();
    const { max_body_bytes: largest } = (await one.hello()).limits;
    await arrange();
    await assert.rejects(one.getAction(episode, new Uint8Array(largest / 2)), { name: "RequestError", status: 413 });
    assert.deepEqual((await arrange()).requests, []);
    assert.equal(await one.getAction(episode, OBS), 0);
    one.close();
  },

  async "a wrong token, a wrong address, and no server are errors"() {
    const wrong = new PolicyClient(address, { token: "wrong", timeout: 2000 });
    await assert.rejects(wrong.startEpisode(), RequestError);
    wrong.close();
    for (const malformed of ["localhost:9900", "ftp://host", "http://", "ws://host/path"]) {
      assert.throws(() => new PolicyClient(malformed), /No address/);
    }
    const nobody = new PolicyClient(address.replace(/\d+$/, "1"), { timeout: 300 });
    await assert.rejects(nobody.startEpisode(), { message: /could not be reached/, status: 503 });
    nobody.close();
  },

  async "a closed client fails pending requests"() {
    const nobody = new PolicyClient(address.replace(/\d+$/, "1"), { timeout: 1e6 });
    const waiting = assert.rejects(nobody.startEpisode(), /closed/);
    nobody.close();
    await waiting;
  },
};

for (const [name, check] of Object.entries(checks)) {
  await arrange({ forget: true });
  await check();
  console.log(`ok: ${name}`);
}
