// The official JavaScript client: an answer, a stream, tools. Writes what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content, fields) =>
  client.chat.completions.create({
    model: "scripted",
    messages: [{ role: "user", content }],
    ...fields,
  });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];

let streamed = "";
let usage = null;
for await (const chunk of await ask("hello", {
  stream: true,
  stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage?.total_tokens ?? usage;
}
const runner = client.chat.completions.stream({
  model: "scripted",
  messages: [{ role: "user", content: "weather?" }],
  tools,
});
const called = await runner.finalChatCompletion();
const calls = called.choices[0].message.tool_calls.map(({ function: { name, arguments: given } }) => [
  name,
  JSON.parse(given),
]);
const text = (await ask("hello")).choices[0].message.content;
process.stdout.write(JSON.stringify({ text, streamed, usage, calls }));
