// Client of a rollax policy server, in one file without packages: .NET, .NET Framework, Mono, Unity (except WebGL).
//
//     using (var client = new Rollax.PolicyClient("ws://127.0.0.1:9900"))
//     {
//         string episode = await client.StartEpisodeAsync();
//         int action = await client.GetDiscreteActionAsync(episode, new[] { 0.1f, 0.2f, 0.3f, 0.4f });
//         await client.LogReturnsAsync(episode, 1.0);
//         await client.EndEpisodeAsync(episode, new[] { 0.2f, 0.3f, 0.4f, 0.5f });
//     }
//
// Observations, actions and other values are numbers, arrays or lists of values, and dictionaries with strings as keys.
// With several agents they are dictionaries by agent id. Integers are returned as long, other numbers as double, arrays
// as List<object>, objects as Dictionary<string, object>.
//
// A request whose connection fails is sent again, over a new one, until it is answered or the time limit is over; the
// server executes it once. So an episode survives a broken connection. It does not survive the end of the server, and not
// too long a pause: EpisodeLostException is then thrown, and the server drops what it has of it. Start another one.

using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net.Http;
using System.Net.WebSockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Rollax
{
    /// <summary>A request that was not executed, with the text of the server.</summary>
    public class RequestException : Exception
    {
        /// <summary>The HTTP status; 503 for a server that cannot be reached.</summary>
        public int Status { get; private set; }

        /// <summary>The id under which the error stands in the server's log, or null.</summary>
        public string ErrorId { get; private set; }

        /// <summary>Seconds after which the same request may succeed, or null.</summary>
        public double? RetryAfter { get; private set; }

        public RequestException(string message, int status = 400, string errorId = null, double? retryAfter = null)
            : base(message)
        {
            Status = status;
            ErrorId = errorId;
            RetryAfter = retryAfter;
        }
    }

    /// <summary>An episode that the server does not know, or no longer: it ended or expired, or the server restarted.
    /// </summary>
    public class EpisodeLostException : RequestException
    {
        public EpisodeLostException(string message, int status, string errorId)
            : base(message, status, errorId)
        {
        }
    }

    /// <summary>Plays episodes with the policy of a server. Thread safe; the requests of one episode are executed in the
    /// order of the calls.</summary>
    public sealed class PolicyClient : IDisposable
    {
        const double FirstPause = 0.05, LongestPause = 2.0;
        const int AttemptsInTime = 3; // so that a connection that is silently dead leaves time for others

        static readonly Dictionary<string, string> Queries = new Dictionary<string, string>
        {
            { "hello", "/v1" }, { "health", "/v1/health" }, { "statistics", "/v1/statistics" },
        };

        readonly string address, token, prefix = Guid.NewGuid().ToString("N").Substring(0, 12);
        readonly bool stream;
        readonly double timeout;
        readonly HttpClient http = new HttpClient { Timeout = Timeout.InfiniteTimeSpan };
        readonly CancellationTokenSource closed = new CancellationTokenSource();
        readonly object guard = new object();
        readonly Random random = new Random();
        readonly Dictionary<string, Task> last = new Dictionary<string, Task>(); // request of each episode
        readonly SemaphoreSlim opening = new SemaphoreSlim(1, 1);
        Socket socket;
        Task<double> largest; // characters that the server takes in a request
        long requests;

        /// <summary>A client of the server at ws://HOST:PORT or http://HOST:PORT; wss:// and https:// with TLS.</summary>
        /// <param name="address">the address</param>
        /// <param name="token">that of the server, or null</param>
        /// <param name="timeout">seconds that a request may take in all, with its repetitions</param>
        public PolicyClient(string address, string token = null, double timeout = 60.0)
        {
            Uri uri;
            bool valid = Uri.TryCreate(address, UriKind.Absolute, out uri) && uri.Host != "" && uri.PathAndQuery == "/"
                && uri.UserInfo == "" && new[] { "ws", "wss", "http", "https" }.Contains(uri.Scheme);
            if (!valid)
                throw new RequestException("No address of a policy server: '" + address + "' in the place of ws://HOST:PORT, "
                    + "http://HOST:PORT, wss://HOST:PORT or https://HOST:PORT");
            stream = uri.Scheme.StartsWith("ws", StringComparison.Ordinal);
            this.address = (uri.Scheme.EndsWith("s", StringComparison.Ordinal) && uri.Scheme != "ws" ? "https://" : "http://")
                + uri.Authority;
            this.token = token;
            this.timeout = timeout;
            Version = -1;
        }

        /// <summary>The version of the weights that chose the last action; -1 before the first.</summary>
        public long Version { get; private set; }

        /// <summary>What the server is: protocol, server, learns, multi_agent, policies, version, addresses, limits.
        /// </summary>
        public Task<Dictionary<string, object>> HelloAsync()
        {
            return Call("hello", new Dictionary<string, object>());
        }

        /// <summary>Starts an episode and returns its id.</summary>
        /// <param name="episodeId">any id that no other episode has; null for a new one</param>
        /// <param name="trainingEnabled">false for an episode that is not learned from</param>
        public async Task<string> StartEpisodeAsync(string episodeId = null, bool trainingEnabled = true)
        {
            // The id is made here, so that a repeated request does not start a second episode.
            string id = episodeId ?? Guid.NewGuid().ToString("N");
            var body = Body(id);
            body["training_enabled"] = trainingEnabled;
            return (string)(await InOrder(new[] { id }, "start_episode", body).ConfigureAwait(false))["episode_id"];
        }

        /// <summary>The policy's action for an observation; with several agents those of the agents with observations.
        /// </summary>
        public async Task<object> GetActionAsync(string episodeId, object obs)
        {
            var body = Body(episodeId);
            body["obs"] = obs;
            var answer = await InOrder(new[] { episodeId }, "get_action", body).ConfigureAwait(false);
            Version = (long)answer["version"];
            return answer["action"];
        }

        /// <summary>The action in a Discrete space.</summary>
        public async Task<int> GetDiscreteActionAsync(string episodeId, object obs)
        {
            return checked((int)(long)await GetActionAsync(episodeId, obs).ConfigureAwait(false));
        }

        /// <summary>The action in a Box space of one axis.</summary>
        public async Task<float[]> GetContinuousActionAsync(string episodeId, object obs)
        {
            var action = (List<object>)await GetActionAsync(episodeId, obs).ConfigureAwait(false);
            return action.Select(part => Convert.ToSingle(part, CultureInfo.InvariantCulture)).ToArray();
        }

        /// <summary>Actions for many episodes, in one message.</summary>
        public async Task<Dictionary<string, object>> GetActionsAsync(IDictionary<string, object> observations)
        {
            var body = new Dictionary<string, object> { { "observations", observations } };
            var answer = await InOrder(observations.Keys.ToArray(), "get_actions", body).ConfigureAwait(false);
            Version = (long)answer["version"];
            return (Dictionary<string, object>)answer["actions"];
        }

        /// <summary>Records an action that the policy did not choose, for off-policy algorithms.</summary>
        public Task LogActionAsync(string episodeId, object obs, object action)
        {
            var body = Body(episodeId);
            body["obs"] = obs;
            body["action"] = action;
            return InOrder(new[] { episodeId }, "log_action", body);
        }

        /// <summary>Adds to the reward of the last action, until the next one or the end of the episode.</summary>
        /// <param name="episodeId">the episode</param>
        /// <param name="reward">a number; with several agents a dictionary of numbers</param>
        /// <param name="info">further values, or null</param>
        public Task LogReturnsAsync(string episodeId, object reward, IDictionary<string, object> info = null)
        {
            var body = Body(episodeId);
            body["reward"] = reward;
            if (info != null) body["info"] = info;
            return InOrder(new[] { episodeId }, "log_returns", body);
        }

        /// <summary>Ends some agents of a running episode, given the last observation (or null) of each.</summary>
        public Task EndAgentsAsync(string episodeId, IDictionary<string, object> observations, bool truncated = false)
        {
            var body = Body(episodeId);
            body["observations"] = observations;
            body["truncated"] = truncated;
            return InOrder(new[] { episodeId }, "end_agents", body);
        }

        /// <summary>Ends an episode with its last observation: terminated, or truncated such as by a time limit.</summary>
        public Task EndEpisodeAsync(string episodeId, object obs, bool truncated = false)
        {
            var body = Body(episodeId);
            body["obs"] = obs;
            body["truncated"] = truncated;
            return InOrder(new[] { episodeId }, "end_episode", body);
        }

        /// <summary>Submits whole episodes that were played elsewhere; returns accepted, too_old and version.</summary>
        public Task<Dictionary<string, object>> SubmitEpisodesAsync(IEnumerable<object> episodes)
        {
            return Call("submit_episodes", new Dictionary<string, object> { { "episodes", episodes } });
        }

        /// <summary>Closes the connection and fails the pending requests. Running episodes expire at the server.</summary>
        public void Dispose()
        {
            if (closed.IsCancellationRequested) return;
            closed.Cancel();
            Socket open;
            lock (guard)
            {
                open = socket;
                socket = null;
            }
            if (open != null) open.Drop("closed by this client");
            http.Dispose();
        }

        static Dictionary<string, object> Body(string episodeId)
        {
            return new Dictionary<string, object> { { "episode_id", episodeId } };
        }

        /// <summary>Sends a request after the answers to the earlier requests of its episodes.</summary>
        Task<Dictionary<string, object>> InOrder(string[] episodeIds, string verb, Dictionary<string, object> body)
        {
            lock (guard)
            {
                var earlier = episodeIds.Where(last.ContainsKey).Select(id => last[id]).ToArray();
                var sent = earlier.Length == 0 ? Call(verb, body) : After(earlier, verb, body);
                foreach (string id in episodeIds) last[id] = sent;
                sent.ContinueWith(done => Forget(episodeIds, sent), TaskContinuationOptions.ExecuteSynchronously);
                return sent;
            }
        }

        async Task<Dictionary<string, object>> After(Task[] earlier, string verb, Dictionary<string, object> body)
        {
            foreach (Task task in earlier)
            {
                try
                {
                    await task.ConfigureAwait(false);
                }
                catch (Exception)
                {
                    // The caller of that request sees it.
                }
            }
            return await Call(verb, body).ConfigureAwait(false);
        }

        void Forget(string[] episodeIds, Task sent)
        {
            if (sent.IsFaulted) GC.KeepAlive(sent.Exception); // it is observed, also of calls that nobody awaits
            lock (guard)
            {
                foreach (string id in episodeIds)
                {
                    Task newest;
                    if (last.TryGetValue(id, out newest) && newest == sent) last.Remove(id);
                }
            }
        }

        async Task<Dictionary<string, object>> Call(string verb, Dictionary<string, object> body)
        {
            var message = new Dictionary<string, object>(body);
            long number = Interlocked.Increment(ref requests);
            if (!Queries.ContainsKey(verb)) message["request_id"] = prefix + "-" + number;
            if (stream)
            {
                message["verb"] = verb;
                message["id"] = number;
            }
            string text = Json.Write(message);
            if (!Queries.ContainsKey(verb)) await RefuseTooLarge(verb, text).ConfigureAwait(false);
            var clock = System.Diagnostics.Stopwatch.StartNew();
            for (int attempt = 0; ; attempt++)
            {
                if (closed.IsCancellationRequested) throw new RequestException("This client is closed.", 503);
                double pause = (0.5 + 0.5 * Jitter()) * Math.Min(FirstPause * Math.Pow(2, attempt), LongestPause);
                RequestException problem;
                try
                {
                    double limit = Math.Min(timeout - clock.Elapsed.TotalSeconds, timeout / AttemptsInTime);
                    var answer = await (stream ? OverStream(number, text, limit) : OverHttp(verb, text, limit))
                        .ConfigureAwait(false);
                    if (answer.Status == 200 && answer.Body != null) return answer.Body;
                    problem = Error(verb, answer);
                    if (answer.Status != 429 && (answer.Status < 502 || answer.Status > 504)) throw problem;
                    if (answer.RetryAfter != null) pause = answer.RetryAfter.Value + 0.1 * pause;
                }
                catch (ConnectionLost lost)
                {
                    problem = new RequestException("The policy server could not be reached, or did not answer in time.\n"
                        + "  where:    " + address + ", " + verb + "\n  got:      " + lost.Message + "\n  fix:      "
                        + "check that the server runs at this address", 503);
                }
                if (clock.Elapsed.TotalSeconds + pause >= timeout) throw problem;
                try
                {
                    await Task.Delay(TimeSpan.FromSeconds(pause), closed.Token).ConfigureAwait(false);
                }
                catch (OperationCanceledException)
                {
                    // Closed: the loop ends with that error.
                }
            }
        }

        /// <summary>Here: a server that has read enough of a request closes the connection, as if that had failed.
        /// </summary>
        async Task RefuseTooLarge(string verb, string text)
        {
            Task<double> known;
            lock (guard)
            {
                if (largest == null || largest.IsFaulted) largest = Largest();
                known = largest;
            }
            double most = await known.ConfigureAwait(false);
            if (text.Length <= most) return;
            throw new RequestException("A request that is larger than the policy server takes.\n  where:    " + address + ", "
                + verb + "\n  got:      " + text.Length + " characters\n  expected: at most " + most + " bytes\n  fix:      "
                + "send less at once, or raise max_body_bytes of the server's limits", 413);
        }

        async Task<double> Largest()
        {
            var limits = (Dictionary<string, object>)(await HelloAsync().ConfigureAwait(false))["limits"];
            return Convert.ToDouble(limits["max_body_bytes"], CultureInfo.InvariantCulture);
        }

        double Jitter()
        {
            lock (random) return random.NextDouble();
        }

        RequestException Error(string verb, Answer answer)
        {
            object found = null;
            if (answer.Body != null) answer.Body.TryGetValue("error", out found);
            var details = found as Dictionary<string, object> ?? new Dictionary<string, object>();
            Func<string, string> part = name => details.ContainsKey(name) ? details[name] as string : null;
            var lines = new List<string>
            {
                part("what") ?? "The policy server answered " + verb + " with status " + answer.Status + ".",
            };
            foreach (string name in new[] { "where", "got", "expected", "fix" })
                if (part(name) != null) lines.Add("  " + (name + ":").PadRight(9) + " " + part(name));
            string text = string.Join("\n", lines);
            bool ofEpisode = verb != "submit_episodes" && verb != "start_episode" && !Queries.ContainsKey(verb);
            if (ofEpisode && (answer.Status == 404 || answer.Status == 410))
                return new EpisodeLostException(text, answer.Status, part("id"));
            return new RequestException(text, answer.Status, part("id"), answer.RetryAfter);
        }

        async Task<Answer> OverHttp(string verb, string text, double limit)
        {
            string query;
            bool get = Queries.TryGetValue(verb, out query);
            using (var request = new HttpRequestMessage(get ? HttpMethod.Get : HttpMethod.Post, address + (query ?? "/v1/" + verb)))
            using (var cancel = CancellationTokenSource.CreateLinkedTokenSource(closed.Token))
            {
                cancel.CancelAfter(TimeSpan.FromSeconds(Math.Max(limit, 0.001)));
                if (token != null) request.Headers.TryAddWithoutValidation("Authorization", "Bearer " + token);
                if (!get) request.Content = new StringContent(text, Encoding.UTF8, "application/json");
                try
                {
                    using (var response = await http.SendAsync(request, cancel.Token).ConfigureAwait(false))
                    {
                        string content = await response.Content.ReadAsStringAsync().ConfigureAwait(false);
                        var after = response.Headers.RetryAfter == null ? null : response.Headers.RetryAfter.Delta;
                        double? seconds = after == null ? (double?)null : after.Value.TotalSeconds;
                        return new Answer((int)response.StatusCode, Json.TryRead(content), seconds);
                    }
                }
                catch (Exception error) when (error is HttpRequestException || error is OperationCanceledException
                    || error is IOException || error is ObjectDisposedException)
                {
                    throw new ConnectionLost((error.InnerException ?? error).Message);
                }
            }
        }

        async Task<Answer> OverStream(long number, string text, double limit)
        {
            var clock = System.Diagnostics.Stopwatch.StartNew();
            Socket open = await Open(limit).ConfigureAwait(false);
            var answered = open.Expect(number);
            using (var cancel = CancellationTokenSource.CreateLinkedTokenSource(closed.Token))
            {
                try
                {
                    await open.Send(text).ConfigureAwait(false);
                    double left = Math.Max(limit - clock.Elapsed.TotalSeconds, 0.001);
                    Task late = Task.Delay(TimeSpan.FromSeconds(left), cancel.Token);
                    if (await Task.WhenAny(answered, late).ConfigureAwait(false) != answered) open.Drop("no answer in time");
                    return Answer.OfStream(await answered.ConfigureAwait(false));
                }
                catch (Exception error) when (error is WebSocketException || error is IOException
                    || error is OperationCanceledException || error is InvalidOperationException)
                {
                    open.Drop(error.Message);
                    throw new ConnectionLost(error.Message);
                }
                finally
                {
                    cancel.Cancel(); // ends the delay
                }
            }
        }

        /// <summary>The open socket; ConnectionLost if there is none in time.</summary>
        async Task<Socket> Open(double limit)
        {
            lock (guard)
                if (socket != null && socket.IsOpen) return socket;
            if (!await opening.WaitAsync(TimeSpan.FromSeconds(Math.Max(limit, 0.001))).ConfigureAwait(false))
                throw new ConnectionLost("the WebSocket could not be opened in time");
            try
            {
                lock (guard)
                    if (socket != null && socket.IsOpen) return socket;
                var opened = await Connect(limit).ConfigureAwait(false);
                lock (guard) socket = opened;
                return opened;
            }
            finally
            {
                opening.Release();
            }
        }

        async Task<Socket> Connect(double limit)
        {
            var web = new ClientWebSocket();
            if (token != null) web.Options.SetRequestHeader("Authorization", "Bearer " + token);
            string problem;
            using (var cancel = CancellationTokenSource.CreateLinkedTokenSource(closed.Token))
            {
                cancel.CancelAfter(TimeSpan.FromSeconds(Math.Max(limit, 0.001)));
                try
                {
                    await web.ConnectAsync(new Uri("ws" + address.Substring(4) + "/v1/stream"), cancel.Token)
                        .ConfigureAwait(false);
                    return new Socket(web);
                }
                catch (Exception error) when (error is WebSocketException || error is OperationCanceledException
                    || error is IOException || error is ObjectDisposedException || error is HttpRequestException)
                {
                    web.Dispose();
                    problem = (error.InnerException ?? error).Message;
                }
            }
            if (closed.IsCancellationRequested) throw new ConnectionLost(problem);
            // A WebSocket does not say why it was refused: the answer over HTTP does.
            Answer answer = await OverHttp("hello", "", limit).ConfigureAwait(false);
            if (answer.Status >= 400 && answer.Status < 500 && answer.Status != 429) throw Error("hello", answer);
            throw new ConnectionLost(problem);
        }

        /// <summary>The connection failed before the answer was there.</summary>
        sealed class ConnectionLost : Exception
        {
            public ConnectionLost(string message)
                : base(message)
            {
            }
        }

        sealed class Answer
        {
            public readonly int Status;
            public readonly Dictionary<string, object> Body;
            public readonly double? RetryAfter;

            public Answer(int status, Dictionary<string, object> body, double? retryAfter)
            {
                Status = status;
                Body = body;
                RetryAfter = retryAfter;
            }

            public static Answer OfStream(Dictionary<string, object> body)
            {
                object status, after;
                if (!body.ContainsKey("error")) return new Answer(200, body, null);
                body.TryGetValue("status", out status);
                body.TryGetValue("retry_after", out after);
                double? seconds = after == null ? (double?)null : Convert.ToDouble(after, CultureInfo.InvariantCulture);
                return new Answer(status == null ? 500 : (int)(long)status, body, seconds);
            }
        }

        /// <summary>An open WebSocket, with the requests that wait for its answers.</summary>
        sealed class Socket
        {
            readonly ClientWebSocket web;
            readonly SemaphoreSlim sending = new SemaphoreSlim(1, 1);
            readonly object guard = new object();
            Dictionary<long, TaskCompletionSource<Dictionary<string, object>>> waiting =
                new Dictionary<long, TaskCompletionSource<Dictionary<string, object>>>();

            public Socket(ClientWebSocket web)
            {
                this.web = web;
                Task.Run((Func<Task>)Receive);
            }

            public bool IsOpen
            {
                get
                {
                    lock (guard) return waiting != null && web.State == WebSocketState.Open;
                }
            }

            /// <summary>The answer to a request that will be sent.</summary>
            public Task<Dictionary<string, object>> Expect(long number)
            {
                var source = new TaskCompletionSource<Dictionary<string, object>>(
                    TaskCreationOptions.RunContinuationsAsynchronously);
                lock (guard)
                {
                    if (waiting == null) throw new ConnectionLost("the connection was lost");
                    waiting[number] = source;
                }
                return source.Task;
            }

            public async Task Send(string text)
            {
                var bytes = new ArraySegment<byte>(Encoding.UTF8.GetBytes(text));
                await sending.WaitAsync().ConfigureAwait(false);
                try
                {
                    await web.SendAsync(bytes, WebSocketMessageType.Text, true, CancellationToken.None).ConfigureAwait(false);
                }
                finally
                {
                    sending.Release();
                }
            }

            /// <summary>Gives the socket up; its pending requests fail, and are sent again.</summary>
            public void Drop(string reason)
            {
                Dictionary<long, TaskCompletionSource<Dictionary<string, object>>> failed;
                lock (guard)
                {
                    failed = waiting;
                    waiting = null;
                }
                if (failed == null) return;
                foreach (var source in failed.Values) source.TrySetException(new ConnectionLost(reason));
                web.Abort();
                web.Dispose();
            }

            async Task Receive()
            {
                string reason = "closed by the server";
                try
                {
                    var part = new ArraySegment<byte>(new byte[1 << 16]);
                    while (true)
                    {
                        var message = new MemoryStream();
                        WebSocketReceiveResult received;
                        do
                        {
                            received = await web.ReceiveAsync(part, CancellationToken.None).ConfigureAwait(false);
                            message.Write(part.Array, 0, received.Count);
                        }
                        while (!received.EndOfMessage && received.MessageType != WebSocketMessageType.Close);
                        if (received.MessageType == WebSocketMessageType.Close) break;
                        if (!Take(Json.TryRead(Encoding.UTF8.GetString(message.ToArray())))) break;
                    }
                }
                catch (Exception error)
                {
                    reason = error.Message;
                }
                Drop(reason);
            }

            /// <summary>Passes an answer on; false for one without an id.</summary>
            bool Take(Dictionary<string, object> answer)
            {
                object number;
                if (answer == null || !answer.TryGetValue("id", out number) || !(number is long)) return false;
                TaskCompletionSource<Dictionary<string, object>> source = null;
                lock (guard)
                {
                    if (waiting != null && waiting.TryGetValue((long)number, out source)) waiting.Remove((long)number);
                }
                if (source != null) source.TrySetResult(answer);
                return true;
            }
        }
    }

    /// <summary>JSON, as far as the protocol requires it; System.Text.Json is not everywhere.</summary>
    static class Json
    {
        const int MostLevels = 100;

        /// <summary>The text of numbers, strings, booleans, null, sequences, and dictionaries with strings as keys.</summary>
        public static string Write(object value)
        {
            var text = new StringBuilder();
            Write(text, value);
            return text.ToString();
        }

        static void Write(StringBuilder text, object value)
        {
            if (value == null) text.Append("null");
            else if (value is string) WriteString(text, (string)value);
            else if (value is bool) text.Append((bool)value ? "true" : "false");
            else if (value is float || value is double) text.Append(Number(value));
            else if (value is IDictionary) WriteObject(text, (IDictionary)value);
            else if (value is IEnumerable) WriteArray(text, (IEnumerable)value);
            else if (value is IConvertible && !(value is char) && !(value is DateTime))
                text.Append(((IFormattable)value).ToString(null, CultureInfo.InvariantCulture));
            else throw new RequestException("A value that cannot be sent: " + value.GetType().Name);
        }

        static string Number(object value)
        {
            double number = Convert.ToDouble(value, CultureInfo.InvariantCulture);
            if (double.IsNaN(number) || double.IsInfinity(number))
                throw new RequestException("A number that is not finite: " + number);
            return ((IFormattable)value).ToString("R", CultureInfo.InvariantCulture);
        }

        static void WriteString(StringBuilder text, string value)
        {
            text.Append('"');
            foreach (char letter in value)
            {
                if (letter == '"' || letter == '\\') text.Append('\\').Append(letter);
                else if (letter < ' ') text.Append("\\u").Append(((int)letter).ToString("x4", CultureInfo.InvariantCulture));
                else text.Append(letter);
            }
            text.Append('"');
        }

        static void WriteObject(StringBuilder text, IDictionary value)
        {
            string separator = "{";
            foreach (DictionaryEntry entry in value)
            {
                if (!(entry.Key is string)) throw new RequestException("A key that is no string: " + entry.Key);
                text.Append(separator);
                WriteString(text, (string)entry.Key);
                text.Append(':');
                Write(text, entry.Value);
                separator = ",";
            }
            text.Append(separator == "{" ? "{}" : "}");
        }

        static void WriteArray(StringBuilder text, IEnumerable value)
        {
            string separator = "[";
            foreach (object part in value)
            {
                text.Append(separator);
                Write(text, part);
                separator = ",";
            }
            text.Append(separator == "[" ? "[]" : "]");
        }

        /// <summary>The object in a text; null for anything else, such as the page of a proxy.</summary>
        public static Dictionary<string, object> TryRead(string text)
        {
            try
            {
                int at = 0;
                object value = Read(text, ref at, 0);
                Skip(text, ref at);
                return at == text.Length ? value as Dictionary<string, object> : null;
            }
            catch (FormatException)
            {
                return null;
            }
            catch (IndexOutOfRangeException)
            {
                return null;
            }
        }

        static void Skip(string text, ref int at)
        {
            while (at < text.Length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) at++;
        }

        static void Expect(string text, ref int at, string expected)
        {
            if (string.CompareOrdinal(text, at, expected, 0, expected.Length) != 0) throw new FormatException();
            at += expected.Length;
        }

        static object Read(string text, ref int at, int level)
        {
            if (level > MostLevels) throw new FormatException();
            Skip(text, ref at);
            switch (text[at])
            {
                case '{': return ReadObject(text, ref at, level);
                case '[': return ReadArray(text, ref at, level);
                case '"': return ReadString(text, ref at);
                case 't': Expect(text, ref at, "true"); return true;
                case 'f': Expect(text, ref at, "false"); return false;
                case 'n': Expect(text, ref at, "null"); return null;
                default: return ReadNumber(text, ref at);
            }
        }

        static Dictionary<string, object> ReadObject(string text, ref int at, int level)
        {
            var value = new Dictionary<string, object>();
            at++;
            Skip(text, ref at);
            while (text[at] != '}')
            {
                Skip(text, ref at);
                string key = ReadString(text, ref at);
                Skip(text, ref at);
                Expect(text, ref at, ":");
                value[key] = Read(text, ref at, level + 1);
                Skip(text, ref at);
                if (text[at] != '}') Expect(text, ref at, ",");
            }
            at++;
            return value;
        }

        static List<object> ReadArray(string text, ref int at, int level)
        {
            var value = new List<object>();
            at++;
            Skip(text, ref at);
            while (text[at] != ']')
            {
                value.Add(Read(text, ref at, level + 1));
                Skip(text, ref at);
                if (text[at] != ']') Expect(text, ref at, ",");
            }
            at++;
            return value;
        }

        static string ReadString(string text, ref int at)
        {
            Expect(text, ref at, "\"");
            var value = new StringBuilder();
            while (text[at] != '"')
            {
                char letter = text[at++];
                if (letter != '\\')
                {
                    value.Append(letter);
                    continue;
                }
                letter = text[at++];
                int special = "bfnrt".IndexOf(letter);
                if (special >= 0) value.Append("\b\f\n\r\t"[special]);
                else if (letter != 'u') value.Append(letter);
                else
                {
                    if (at + 4 > text.Length) throw new FormatException();
                    value.Append((char)int.Parse(text.Substring(at, 4), NumberStyles.HexNumber, CultureInfo.InvariantCulture));
                    at += 4;
                }
            }
            at++;
            return value.ToString();
        }

        static object ReadNumber(string text, ref int at)
        {
            int start = at;
            while (at < text.Length && (char.IsDigit(text[at]) || "+-.eE".IndexOf(text[at]) >= 0)) at++;
            string number = text.Substring(start, at - start);
            long integer;
            if (long.TryParse(number, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out integer)) return integer;
            return double.Parse(number, NumberStyles.Float, CultureInfo.InvariantCulture);
        }
    }
}
