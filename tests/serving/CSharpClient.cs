// The checks of test_other_languages.py: CSharpClient.exe ADDRESS TOKEN HTTP_ADDRESS, against a FakeServer.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Net.Http;
using System.Text;
using System.Threading.Tasks;
using Rollax;

static class Program
{
    static readonly float[] Obs = { 0.5f, -0.25f };
    static readonly string[] Verbs =
    {
        "start_episode", "get_action", "log_returns", "get_action", "log_returns", "end_episode",
    };
    const string Busy = "[429, {\"error\": {\"id\": \"e\", \"what\": \"Too many.\"}}, {\"Retry-After\": \"RETRY\"}]";
    const string Starting = "[503, {\"error\": {\"id\": \"e\", \"what\": \"Starting.\"}}, {}]";
    const string Refusal = "[422, {\"error\": {\"id\": \"e\", \"what\": \"Bad value.\", \"where\": \"obs\", \"fix\": \"Send \\\"x\\\".\"}}, {}]";

    static readonly HttpClient http = new HttpClient();
    static string address, token, arranged;

    static int Main(string[] arguments)
    {
        address = arguments[0];
        token = arguments[1];
        arranged = arguments[2] + "/v1/arrange";
        http.DefaultRequestHeaders.Add("Authorization", "Bearer " + token);
        var checks = new Func<Task>[]
        {
            PlaysAnEpisode, SurvivesAnyFaultAtAnyRequest, PlaysManyEpisodesAtOnce, ALostEpisodeIsAnErrorOfItsOwn,
            ARefusalHasTheTextOfTheServer, ABusyServerIsAnError, OddValuesAreRefusedBeforeTheyAreSent,
            ATooLargeRequestIsRefusedBeforeItIsSent, NoServerIsAnError, AClosedClientFailsWhatWaits,
        };
        foreach (var check in checks)
        {
            Arrange("{\"forget\": true}").GetAwaiter().GetResult();
            check().GetAwaiter().GetResult();
            Console.WriteLine("ok: " + check.Method.Name);
        }
        return 0;
    }

    // Sets the server's faults, and returns what it has written about the time since the last call.
    static async Task<string> Arrange(string options = "{}")
    {
        var response = await http.PostAsync(arranged, new StringContent(options, Encoding.UTF8, "application/json"));
        return (await response.Content.ReadAsStringAsync()).Replace(" ", "");
    }

    static string Listed(string key, IEnumerable<string> verbs)
    {
        return "\"" + key + "\":[" + string.Join(",", verbs.Select(verb => "\"" + verb + "\"")) + "]";
    }

    static void Check(bool condition, string what)
    {
        if (!condition) throw new Exception("failed: " + what);
    }

    static async Task<T> Thrown<T>(Task task) where T : Exception
    {
        try
        {
            await task;
        }
        catch (T error)
        {
            return error;
        }
        throw new Exception("no " + typeof(T).Name);
    }

    static async Task<string> Play(PolicyClient client, int steps = 2)
    {
        string episode = await client.StartEpisodeAsync();
        var actions = new List<int>();
        for (int step = 0; step < steps; step++)
        {
            actions.Add(await client.GetDiscreteActionAsync(episode, Obs));
            var info = new Dictionary<string, object> { { "step", step } };
            client.LogReturnsAsync(episode, 1.5, info).GetHashCode(); // not awaited: the next request waits for it
        }
        await client.EndEpisodeAsync(episode, Obs, truncated: true);
        return string.Join(",", actions);
    }

    static async Task PlaysAnEpisode()
    {
        using (var client = new PolicyClient(address, token))
        {
            Check((string)(await client.HelloAsync())["server"] == "fake", "hello");
            Check(await Play(client) == "0,1", "actions");
            Check(client.Version == 1, "version");
        }
        string happened = await Arrange();
        Check(happened.Contains(Listed("executed", Verbs)), happened);
    }

    static async Task SurvivesAnyFaultAtAnyRequest()
    {
        foreach (string fault in new[] { "\"drop before\"", "\"drop after\"", Busy.Replace("RETRY", "0"), Starting })
        {
            for (int failing = 0; failing < Verbs.Length; failing++)
            {
                string faults = string.Join(",", Enumerable.Repeat("null", failing).Concat(new[] { fault }));
                await Arrange("{\"faults\": [" + faults + "]}");
                using (var client = new PolicyClient(address, token))
                    Check(await Play(client) == "0,1", fault + " at " + failing);
                string happened = await Arrange();
                Check(happened.Contains(Listed("executed", Verbs)), fault + " at " + failing + ": " + happened);
            }
        }
    }

    static async Task PlaysManyEpisodesAtOnce()
    {
        await Arrange("{\"faults\": [null, \"drop after\", null, \"drop before\"]}");
        using (var client = new PolicyClient(address, token))
        {
            string[] played = await Task.WhenAll(Enumerable.Range(0, 8).Select(number => Play(client, 4)));
            Check(played.All(actions => actions == "0,1,2,3"), string.Join(" ", played));
            await Arrange("{\"faults\": [\"drop before\"]}");
            var starting = client.StartEpisodeAsync("mine");
            Check(await client.GetDiscreteActionAsync("mine", Obs) == 0, "the order of the calls");
            string first = await client.StartEpisodeAsync(), mine = await starting;
            Check(mine == "mine", "the given id");
            await client.GetActionAsync(first, Obs);
            var observations = new Dictionary<string, object> { { first, Obs }, { mine, new List<double> { 1, 2 } } };
            var actions2 = await client.GetActionsAsync(observations);
            Check((long)actions2[first] == 1 && (long)actions2[mine] == 1, "actions of several episodes");
        }
    }

    static async Task ALostEpisodeIsAnErrorOfItsOwn()
    {
        using (var client = new PolicyClient(address, token))
        {
            string episode = await client.StartEpisodeAsync();
            await Arrange("{\"forget\": true}");
            var error = await Thrown<EpisodeLostException>(client.GetActionAsync(episode, Obs));
            Check(error.Status == 404 && error.ErrorId == "e1" && error.Message.Contains("not known"), error.Message);
            Check(await Play(client) == "0,1", "the next episode");
        }
    }

    static async Task ARefusalHasTheTextOfTheServer()
    {
        using (var client = new PolicyClient(address, token))
        {
            string episode = await client.StartEpisodeAsync();
            await Arrange("{\"faults\": [" + Refusal + "]}");
            var error = await Thrown<RequestException>(client.GetActionAsync(episode, Obs));
            Check(error.Message == "Bad value.\n  where:    obs\n  fix:      Send \"x\".", error.Message);
            string happened = await Arrange();
            Check(happened.Contains(Listed("requests", new[] { "get_action" })), happened);
        }
    }

    static async Task ABusyServerIsAnError()
    {
        using (var client = new PolicyClient(address, token))
        {
            await Arrange("{\"faults\": [" + Busy.Replace("RETRY", "1000") + "]}");
            var error = await Thrown<RequestException>(client.StartEpisodeAsync());
            Check(error.Status == 429 && error.RetryAfter == 1000.0, error.Message);
        }
    }

    static async Task OddValuesAreRefusedBeforeTheyAreSent()
    {
        using (var client = new PolicyClient(address, token))
        {
            string episode = await client.StartEpisodeAsync();
            await Arrange();
            foreach (object odd in new object[] { float.NaN, double.PositiveInfinity, new object(), DateTime.UtcNow })
                await Thrown<RequestException>(client.GetActionAsync(episode, new[] { odd }));
            Check((await Arrange()).Contains("\"requests\":[]"), "nothing is sent");
            var nested = new Dictionary<string, object> { { "ä\"\n", new object[] { 1, 2L, 0.5, true, null, "x" } } };
            await client.LogActionAsync(episode, nested, new[,] { { 1, 2 }, { 3, 4 } });
        }
    }

    static async Task ATooLargeRequestIsRefusedBeforeItIsSent()
    {
        using (var client = new PolicyClient(address, token))
        {
            string episode = await client.StartEpisodeAsync();
            var limits = (Dictionary<string, object>)(await client.HelloAsync())["limits"];
            await Arrange();
            var error = await Thrown<RequestException>(client.GetActionAsync(episode, new int[(long)limits["max_body_bytes"] / 2]));
            Check(error.Status == 413, error.Message);
            Check((await Arrange()).Contains("\"requests\":[]"), "nothing is sent");
            Check(await client.GetDiscreteActionAsync(episode, Obs) == 0, "the next request");
        }
    }

    static async Task NoServerIsAnError()
    {
        using (var wrong = new PolicyClient(address, "wrong", 5.0))
            await Thrown<RequestException>(wrong.StartEpisodeAsync());
        foreach (string malformed in new[] { "localhost:9900", "ftp://host", "", "ws://host/path" })
        {
            try
            {
                new PolicyClient(malformed);
                throw new Exception("no error for " + malformed);
            }
            catch (RequestException)
            {
            }
        }
        using (var nobody = new PolicyClient(address.Substring(0, address.LastIndexOf(':')) + ":1", timeout: 0.5))
        {
            var error = await Thrown<RequestException>(nobody.StartEpisodeAsync());
            Check(error.Status == 503 && error.Message.Contains("could not be reached"), error.Message);
        }
    }

    static async Task AClosedClientFailsWhatWaits()
    {
        var nobody = new PolicyClient(address.Substring(0, address.LastIndexOf(':')) + ":1", timeout: 1e6);
        var waiting = nobody.StartEpisodeAsync();
        nobody.Dispose();
        var error = await Thrown<RequestException>(waiting);
        Check(error.Message.Contains("closed"), error.Message);
    }
}
