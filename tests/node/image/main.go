// All that is in the images of the node's tests: waits, or says what it sees and waits.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Read from standard output as one line of JSON.
type seen struct {
	Environment map[string]string `json:"environment"`
	Cards       []string          `json:"cards"`
}

func main() {
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM)
	switch os.Args[1] {
	case "pause":
	case "show":
		show()
	case "show-and-end":
		show()
		return
	}
	<-ending
}

func show() {
	what := seen{Environment: map[string]string{}, Cards: []string{}}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		what.Environment[name] = value
	}
	cards, _ := filepath.Glob("/dev/card-*")
	for _, card := range cards {
		what.Cards = append(what.Cards, filepath.Base(card))
	}
	if err := json.NewEncoder(os.Stdout).Encode(what); err != nil {
		panic(err)
	}
}
