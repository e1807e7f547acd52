// runc without seccomp: that part of it takes a C library, and the node's tests are about devices.
//
// Takes the filter out of what the container is made from, and becomes runc.
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	for number, argument := range os.Args {
		if argument == "--bundle" && number+1 < len(os.Args) {
			withoutFilter(filepath.Join(os.Args[number+1], "config.json"))
		}
	}
	self, err := os.Executable()
	must(err)
	runc := filepath.Join(filepath.Dir(self), "runc")
	must(syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ()))
}

func withoutFilter(path string) {
	content, err := os.ReadFile(path)
	must(err)
	config := map[string]json.RawMessage{}
	must(json.Unmarshal(content, &config))
	linux := map[string]json.RawMessage{}
	must(json.Unmarshal(config["linux"], &linux))
	delete(linux, "seccomp")
	config["linux"], err = json.Marshal(linux)
	must(err)
	content, err = json.Marshal(config)
	must(err)
	must(os.WriteFile(path, content, 0o644))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
