// The franz-go client, asked by JSON: one request per line of standard input, one answer per line of standard output.
//
// "produce" and "consume" use the client without a group; all else is in admin.go. Bytes are base64. What the client
// returns as an error is answered as {"error": Kafka's code, "message": text}.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"
)

type request struct {
	Op        string `json:"op"`
	Bootstrap string `json:"bootstrap"`

	Topic      string   `json:"topic"`
	Partition  int32    `json:"partition"`
	Codec      string   `json:"codec"`
	Acks       string   `json:"acks"`
	Idempotent bool     `json:"idempotent"`
	LingerMs   int      `json:"linger_ms"`
	Records    []record `json:"records"`
	AutoCreate bool     `json:"auto_create"`

	Partitions json.RawMessage `json:"partitions"`
	Count      int             `json:"count"`
	Reset      string          `json:"reset"`
	Isolation  string          `json:"isolation"`
	MaxBytes   int32           `json:"max_bytes"`
	MaxWaitMs  int             `json:"max_wait_ms"`
	DeadlineMs int             `json:"deadline_ms"`

	ReplicationFactor int16             `json:"replication_factor"`
	Config            map[string]string `json:"config"`
	ValidateOnly      bool              `json:"validate_only"`
	Resource          string            `json:"resource"`
	Name              string            `json:"name"`
	Incremental       bool              `json:"incremental"`
	Changes           [][3]*string      `json:"changes"`
	Offset            int64             `json:"offset"`
	Timestamp         int64             `json:"timestamp"`
}

// A nil slice is JSON's null: what has no key or value stays apart from what has an empty one.
type header struct {
	Name  string
	Value []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

type record struct {
	Topic         string   `json:"topic"`
	Partition     int32    `json:"partition"`
	Offset        int64    `json:"offset"`
	Timestamp     *int64   `json:"timestamp"`
	LogAppendTime bool     `json:"log_append_time"`
	Key           []byte   `json:"key"`
	Value         []byte   `json:"value"`
	Headers       []header `json:"headers"`
}

type answer map[string]any

func respond(asked request) (answer, error) {
	switch asked.Op {
	case "produce":
		return produce(asked)
	case "consume":
		return consume(asked)
	}
	return administer(asked)
}

func failure(err error) answer {
	var known *kerr.Error
	if errors.As(err, &known) {
		return answer{"error": known.Code, "message": err.Error()}
	}
	return answer{"error": -1, "message": fmt.Sprintf("%T: %v", err, err)}
}

func main() {
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	for {
		var asked request
		if err := in.Decode(&asked); err != nil {
			return
		}
		given, err := respond(asked)
		if err != nil {
			given = failure(err)
		}
		if err := out.Encode(given); err != nil {
			return
		}
	}
}
