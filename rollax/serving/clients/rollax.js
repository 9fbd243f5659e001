/**
 * Client of a rollax policy server, for browsers and Node. One file without dependencies, an ES module.
 *
 *     import { PolicyClient } from "./rollax.js";
 *
 *     const client = new PolicyClient("ws://127.0.0.1:9900");
 *     const episode = await client.startEpisode();
 *     const action = await client.getAction(episode, [0.1, 0.2, 0.3, 0.4]);
 *     await client.logReturns(episode, 1.0);
 *     await client.endEpisode(episode, [0.2, 0.3, 0.4, 0.5]);
 *     client.close();
 *
 * A request whose connection fails is sent again, over a new one, until it is answered or the time limit is over; the
 * server executes it once. So an episode survives a broken connection. It does not survive the end of the server, and not
 * too long a pause: EpisodeLostError is then thrown, and the server drops what it has of it. Start another one.
 *
 * Node before version 22 has no WebSocket: start it with --experimental-websocket, or use an http:// address.
 */

/**
 * An observation, action or other value of a Gymnasium space: a number, an array (or typed array) of values, or an
 * object of values by key. With several agents, an object by agent id.
 * @typedef {number | boolean | string | null | ArrayLike<any> | {[key: string]: any}} Value
 */

/**
 * @typedef {Object} Options
 * @property {string} [token] that of the server
 * @property {number} [timeout] milliseconds that a request may take in all, with its repetitions; 60000 by default
 * @property {any} [WebSocket] the class to use; by default that of the browser or of Node
 * @property {typeof globalThis.fetch} [fetch] the function to use; by default that of the browser or of Node
 */

/**
 * @typedef {Object} Hello
 * @property {number} protocol
 * @property {string} server name and version
 * @property {boolean} learns whether the server learns from the episodes
 * @property {boolean} multi_agent whether observations, actions and rewards are objects by agent id
 * @property {{[policyId: string]: {observation_space: any, action_space: any, recurrent: boolean}}} policies
 * @property {number} version of the weights
 * @property {string[]} addresses of all servers of the run
 * @property {{[name: string]: number | null}} limits
 */

const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
const LONGEST_TIMEOUT = 2 ** 31 - 1; // setTimeout fires at once after a longer time
const ATTEMPTS_IN_TIME = 3; // so that a connection that is silently dead leaves time for others
const REPEATED = new Set([429, 502, 503, 504]);
const QUERIES = new Map([["hello", "/v1"], ["health", "/v1/health"], ["statistics", "/v1/statistics"]]);

/** A request that was not executed, with the text of the server. */
export class RequestError extends Error {
  /**
   * @param {string} what
   * @param {{status?: number, id?: string, where?: string, got?: string, expected?: string, fix?: string,
   *   retryAfter?: number}} [details]
   */
  constructor(what, details = {}) {
    const parts = ["where", "got", "expected", "fix"].filter((name) => details[name] != null);
    super([what, ...parts.map((name) => `  ${`${name}:`.padEnd(9)} ${details[name]}`)].join("\n"));
    this.name = new.target.name;
    /** The HTTP status; 503 for a server that cannot be reached. */
    this.status = details.status ?? 400;
    /** The id under which the error stands in the server's log. */
    this.errorId = details.id ?? null;
    /** Seconds after which the same request may succeed. */
    this.retryAfter = details.retryAfter ?? null;
  }
}

/** An episode that the server does not know, or no longer: it ended or expired, or the server restarted. */
export class EpisodeLostError extends RequestError {}

/** The connection failed before the answer was there. */
class ConnectionLost extends Error {}

/** Plays episodes with the policy of a server. The requests of one episode are executed in the order of the calls. */
export class PolicyClient {
  #address;
  #options;
  #stream;
  #prefix = Math.random().toString(36).slice(2, 12);
  #requests = 0;
  #closed = false;
  /** @type {Promise<number> | null} characters that the server takes in a request */
  #largest = null;
  /** @type {Map<string, Promise<any>>} the last request of each episode */
  #last = new Map();
  /** @type {Set<() => void>} */
  #sleepers = new Set();
  /** @type {Promise<any> | null} */
  #opening = null;
  /** @type {any} */
  #socket = null;
  /** @type {Map<number, {resolve: (answer: any) => void, reject: (error: Error) => void, timer: any}>} */
  #waiting = new Map();

  /**
   * @param {string} address ws://HOST:PORT or http://HOST:PORT; wss:// and https:// with TLS
   * @param {Options} [options]
   */
  constructor(address, options = {}) {
    const match = /^(ws|http)(s?):\/\/([^/?#@]+)\/?$/.exec(address);
    if (match === null) {
      const expected = "ws://HOST:PORT, http://HOST:PORT, wss://HOST:PORT or https://HOST:PORT";
      throw new RequestError("No address of a policy server.", { got: address, expected });
    }
    this.#stream = match[1] === "ws";
    this.#address = `http${match[2]}://${match[3]}`;
    this.#options = {
      token: options.token,
      timeout: Math.min(options.timeout ?? 60000, LONGEST_TIMEOUT),
      WebSocket: options.WebSocket ?? globalThis.WebSocket,
      fetch: options.fetch ?? globalThis.fetch?.bind(globalThis),
    };
    /** The version of the weights that chose the last action; -1 before the first. */
    this.version = -1;
    if (this.#stream && this.#options.WebSocket === undefined) {
      const fix = "Node 22, or node --experimental-websocket, or an http:// address";
      throw new RequestError("There is no WebSocket here.", { got: address, fix });
    }
  }

  /** @returns {Promise<Hello>} what the server is */
  hello() {
    return this.#call("hello", {});
  }

  /**
   * The state of the server and its run, as on its page.
   * @returns {Promise<{[name: string]: any}>}
   */
  statistics() {
    return this.#call("statistics", {});
  }

  /**
   * Starts an episode and returns its id.
   * @param {{episodeId?: string, trainingEnabled?: boolean}} [options] any id that no other episode has; whether it is
   *   learned from
   * @returns {Promise<string>}
   */
  async startEpisode({ episodeId, trainingEnabled = true } = {}) {
    const id = episodeId ?? `${this.#prefix}-${this.#requests}`;
    const body = { episode_id: id, training_enabled: trainingEnabled };
    return (await this.#inOrder([id], "start_episode", body)).episode_id;
  }

  /**
   * The policy's action for an observation; with several agents those of the agents with observations.
   * @param {string} episodeId
   * @param {Value} obs
   * @returns {Promise<any>}
   */
  async getAction(episodeId, obs) {
    const answer = await this.#inOrder([episodeId], "get_action", { episode_id: episodeId, obs });
    this.version = answer.version;
    return answer.action;
  }

  /**
   * Actions for many episodes, in one message.
   * @param {{[episodeId: string]: Value}} observations
   * @returns {Promise<{[episodeId: string]: any}>}
   */
  async getActions(observations) {
    const answer = await this.#inOrder(Object.keys(observations), "get_actions", { observations });
    this.version = answer.version;
    return answer.actions;
  }

  /**
   * Records an action that the policy did not choose, for off-policy algorithms.
   * @param {string} episodeId
   * @param {Value} obs
   * @param {Value} action
   * @returns {Promise<void>}
   */
  async logAction(episodeId, obs, action) {
    await this.#inOrder([episodeId], "log_action", { episode_id: episodeId, obs, action });
  }

  /**
   * Adds to the reward of the last action, until the next one or the end of the episode.
   * @param {string} episodeId
   * @param {number | {[agentId: string]: number}} reward
   * @param {{[key: string]: any}} [info]
   * @returns {Promise<void>}
   */
  async logReturns(episodeId, reward, info) {
    await this.#inOrder([episodeId], "log_returns", { episode_id: episodeId, reward, info });
  }

  /**
   * Ends some agents of a running episode, given the last observation (or null) of each.
   * @param {string} episodeId
   * @param {{[agentId: string]: Value}} observations
   * @param {{truncated?: boolean}} [options]
   * @returns {Promise<void>}
   */
  async endAgents(episodeId, observations, { truncated = false } = {}) {
    await this.#inOrder([episodeId], "end_agents", { episode_id: episodeId, observations, truncated });
  }

  /**
   * Ends an episode with its last observation: terminated, or truncated such as by a time limit.
   * @param {string} episodeId
   * @param {Value} obs
   * @param {{truncated?: boolean}} [options]
   * @returns {Promise<void>}
   */
  async endEpisode(episodeId, obs, { truncated = false } = {}) {
    await this.#inOrder([episodeId], "end_episode", { episode_id: episodeId, obs, truncated });
  }

  /**
   * Submits whole episodes that were played elsewhere.
   * @param {{agents: {[agentId: string]: any}, episode_id?: string, policy_version?: number}[]} episodes
   * @returns {Promise<{accepted: number, too_old: number, version: number}>}
   */
  submitEpisodes(episodes) {
    return this.#call("submit_episodes", { episodes });
  }

  /** Closes the connection and fails the pending requests. Running episodes expire at the server. */
  close() {
    this.#closed = true;
    for (const wake of this.#sleepers) wake();
    this.#drop(this.#socket, "closed by this client");
  }

  /** Sends a request after the answers to the earlier requests of its episodes. */
  #inOrder(episodeIds, verb, body) {
    const earlier = episodeIds.map((id) => this.#last.get(id)).filter((request) => request !== undefined);
    const sent = earlier.length === 0 ? this.#call(verb, body)
      : Promise.allSettled(earlier).then(() => this.#call(verb, body));
    const settled = sent.catch(() => {}).then(() => {
      for (const id of episodeIds) if (this.#last.get(id) === settled) this.#last.delete(id);
    });
    for (const id of episodeIds) this.#last.set(id, settled);
    return sent;
  }

  async #call(verb, body) {
    const message = QUERIES.has(verb) ? {} : { request_id: `${this.#prefix}-${this.#requests++}`, ...body };
    const text = encode(message);
    if (!QUERIES.has(verb)) await this.#refuseTooLarge(verb, text);
    const deadline = performance.now() + this.#options.timeout;
    for (let attempt = 0; ; attempt++) {
      if (this.#closed) throw new RequestError("This client is closed.", { status: 503, where: this.#address });
      let pause = (0.5 + 0.5 * Math.random()) * Math.min(FIRST_PAUSE * 2 ** attempt, LONGEST_PAUSE);
      let problem;
      try {
        const limit = Math.min(deadline - performance.now(), this.#options.timeout / ATTEMPTS_IN_TIME);
        const answer = await (this.#stream ? this.#overStream(verb, text, limit) : this.#overHttp(verb, text, limit));
        if (answer.status === 200) return answer.body;
        problem = this.#error(verb, answer);
        if (!REPEATED.has(answer.status)) throw problem;
        if (answer.retryAfter != null) pause = 1000 * answer.retryAfter + 0.1 * pause;
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
        problem = new RequestError("The policy server could not be reached, or did not answer in time.", {
          status: 503,
          where: `${this.#address}, ${verb}`,
          got: error.message,
          expected: `an answer within ${this.#options.timeout / 1000} s`,
          fix: "check that the server runs at this address, and allows the origin of this page",
        });
      }
      if (performance.now() + pause >= deadline) throw problem;
      await this.#sleep(pause);
    }
  }

  /** Here: a server that has read enough of a request closes the connection, as if that had failed. */
  async #refuseTooLarge(verb, text) {
    this.#largest ??= this.hello().then(({ limits }) => limits.max_body_bytes);
    const largest = await this.#largest.catch((error) => {
      this.#largest = null;
      throw error;
    });
    if (text.length > largest) {
      throw new RequestError("A request that is larger than the policy server takes.", {
        status: 413,
        where: `${this.#address}, ${verb}`,
        got: `${text.length} characters`,
        expected: `at most ${largest} bytes`,
        fix: "send less at once, or raise max_body_bytes of the server's limits",
      });
    }
  }

  #error(verb, answer) {
    const details = answer.body?.error ?? {};
    const what = details.what ?? `The policy server answered ${verb} with status ${answer.status}.`;
    const ofEpisode = verb !== "submit_episodes" && verb !== "start_episode" && !QUERIES.has(verb);
    const lost = (answer.status === 404 || answer.status === 410) && ofEpisode;
    const all = { where: `${this.#address}, ${verb}`, ...details, status: answer.status, retryAfter: answer.retryAfter };
    return new (lost ? EpisodeLostError : RequestError)(what, all);
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#sleepers.delete(wake);
        resolve(undefined);
      };
      const timer = setTimeout(wake, milliseconds);
      this.#sleepers.add(wake);
    });
  }

  async #overHttp(verb, text, limit) {
    const query = QUERIES.get(verb);
    const { token, fetch } = this.#options;
    const headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    const options = query !== undefined ? { headers }
      : { headers: { ...headers, "Content-Type": "application/json" }, method: "POST", body: text };
    const aborter = new AbortController();
    const timer = setTimeout(() => aborter.abort(), limit);
    let response, content;
    try {
      const signal = aborter.signal;
      response = await fetch(`${this.#address}${query ?? `/v1/${verb}`}`, { ...options, signal, cache: "no-store" });
      content = await response.text();
    } catch (error) {
      throw new ConnectionLost(String(error?.cause ?? error));
    } finally {
      clearTimeout(timer);
    }
    const after = Number.parseFloat(response.headers.get("Retry-After") ?? ""); // a proxy may send a date
    return { status: response.status, body: decode(content), retryAfter: Number.isNaN(after) ? null : after };
  }

  async #overStream(verb, text, limit) {
    const started = performance.now();
    const id = this.#requests++;
    const message = `{"verb":"${verb}","id":${id}${text === "{}" ? "" : ","}${text.slice(1)}`;
    const socket = await this.#open(limit);
    if (socket !== this.#socket) throw new ConnectionLost("the connection was lost");
    return new Promise((resolve, reject) => {
      const left = Math.max(limit - (performance.now() - started), 1);
      const timer = setTimeout(() => this.#drop(socket, "no answer in time"), left);
      this.#waiting.set(id, { resolve, reject, timer });
      socket.send(message);
    });
  }

  /** The open socket; ConnectionLost if there is none in time. */
  #open(limit) {
    if (this.#socket !== null && this.#socket.readyState === 1) return this.#socket;
    this.#opening ??= this.#connect(limit).finally(() => {
      this.#opening = null;
    });
    return this.#opening;
  }

  async #connect(limit) {
    const { token, WebSocket } = this.#options;
    const protocols = token === undefined ? [] : ["rollax", `bearer.${base64url(token)}`];
    const socket = new WebSocket(`${this.#address.replace(/^http/, "ws")}/v1/stream`, protocols);
    const opened = await new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), limit);
      const settle = (result) => () => {
        clearTimeout(timer);
        resolve(result);
      };
      socket.onopen = settle(true);
      socket.onerror = socket.onclose = settle(false);
    });
    if (!opened || this.#closed) {
      socket.onopen = () => socket.close();
      if (socket.readyState === 1) socket.close();
      if (!this.#closed) await this.#explain(limit);
      throw new ConnectionLost("the WebSocket could not be opened");
    }
    socket.onmessage = (event) => this.#receive(socket, event.data);
    socket.onerror = socket.onclose = (event) => this.#drop(socket, event.reason || "the connection was lost");
    this.#socket = socket;
    return socket;
  }

  /** Browsers do not say why a WebSocket was refused: asks over HTTP, and throws what the server answers. */
  async #explain(limit) {
    const answer = await this.#overHttp("hello", "", limit);
    if (answer.status !== 200 && !REPEATED.has(answer.status)) throw this.#error("hello", answer);
  }

  #receive(socket, data) {
    const answer = decode(data);
    const waiting = this.#waiting.get(answer?.id);
    if (waiting === undefined) {
      if (answer?.id == null) this.#drop(socket, answer?.error?.what ?? "an answer without an id");
      return;
    }
    this.#waiting.delete(answer.id);
    clearTimeout(waiting.timer);
    const { id, status, retry_after: retryAfter, ...body } = answer;
    waiting.resolve(body.error === undefined ? { status: 200, body } : { status, body, retryAfter });
  }

  /** Gives a socket up; its pending requests fail, and are sent again. */
  #drop(socket, reason) {
    if (socket === null || socket !== this.#socket) return;
    this.#socket = null;
    socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    socket.close();
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject, timer } of waiting) {
      clearTimeout(timer);
      reject(new ConnectionLost(reason));
    }
  }
}

/** JSON, with typed arrays as arrays. JSON.stringify would write NaN as null. */
function encode(message) {
  return JSON.stringify(message, (key, value) => {
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new RequestError("A number that is not finite.", { where: key, got: String(value), expected: "a finite one" });
    }
    return ArrayBuffer.isView(value) && !(value instanceof DataView) ? Array.from(/** @type {any} */ (value)) : value;
  });
}

function decode(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // the page of a proxy
  }
}

function base64url(text) {
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
