// The load generator: sends recorded requests over TLS connections that are kept, either as fast as
// the answers come (closed loop) or at a fixed rate (open loop), and prints one line of JSON.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

var (
	address     = flag.String("address", "", "HOST:PORT")
	authority   = flag.String("ca", "", "PEM file")
	bodies      = flag.String("bodies", "", "file: for each request hook and body, each after its length in four bytes")
	connections = flag.Int("connections", 4, "that are kept")
	seconds     = flag.Float64("seconds", 1, "how long")
	start       = flag.Int("start", 0, "number of the request to begin with")
	rate        = flag.Float64("rate", 0, "requests a second; 0 is as fast as answers come")
)

type call struct {
	url  string
	body []byte
}

func main() {
	flag.Parse()
	calls, err := read(*bodies)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*authority)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}},
		MaxIdleConnsPerHost: *connections,
		MaxConnsPerHost:     *connections,
		DisableCompression:  true,
	}}
	var took []time.Duration
	if *rate > 0 {
		took, err = open(client, calls)
	} else {
		took, err = closed(client, calls)
	}
	if err != nil {
		log.Fatal(err)
	}
	sort.Slice(took, func(one, other int) bool { return took[one] < took[other] })
	at := func(part float64) float64 {
		return float64(took[int(part*float64(len(took)-1))].Microseconds()) / 1000
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"requests": len(took), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1),
	})
}

// closed keeps every connection busy until the time is over.
func closed(client *http.Client, calls []call) ([]time.Duration, error) {
	end := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	var next atomic.Int64
	next.Store(int64(*start))
	parts := make([][]time.Duration, *connections)
	failures := make([]error, *connections)
	var group sync.WaitGroup
	for number := range parts {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
				began := time.Now()
				if err := send(client, calls[int(next.Add(1)-1)%len(calls)]); err != nil {
					failures[number] = err
					return
				}
				parts[number] = append(parts[number], time.Since(began))
			}
		}()
	}
	group.Wait()
	var took []time.Duration
	for _, part := range parts {
		took = append(took, part...)
	}
	return took, errors.Join(failures...)
}

// open sends at fixed moments, whether answers come or not, and counts from the moment on.
func open(client *http.Client, calls []call) ([]time.Duration, error) {
	count := int(*rate * *seconds)
	took := make([]time.Duration, count)
	failures := make([]error, count)
	began := time.Now().Add(10 * time.Millisecond)
	var group sync.WaitGroup
	for number := range count {
		due := began.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		group.Add(1)
		go func() {
			defer group.Done()
			failures[number] = send(client, calls[(*start+number)%len(calls)])
			took[number] = time.Since(due)
		}()
	}
	group.Wait()
	return took, errors.Join(failures...)
}

func send(client *http.Client, one call) error {
	limited, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	asked, err := http.NewRequestWithContext(limited, http.MethodPost, one.url, bytes.NewReader(one.body))
	if err != nil {
		return err
	}
	asked.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(asked)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status=%d: %s", answer.StatusCode, text)
	}
	return err
}

func read(path string) ([]call, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var calls []call
	take := func() []byte {
		length := binary.BigEndian.Uint32(file)
		part := file[4 : 4+length]
		file = file[4+length:]
		return part
	}
	if _, _, err := net.SplitHostPort(*address); err != nil {
		return nil, err
	}
	for len(file) > 0 {
		hook := string(take())
		calls = append(calls, call{url: fmt.Sprintf("https://%s/%s?timeout=5s", *address, hook), body: take()})
	}
	return calls, nil
}
