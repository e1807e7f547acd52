// The peer: the least that an extender can be. It takes names and gives them back, scores every node
// alike, binds what kube-scheduler asks it to bind, and records nothing.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

const bodyBytesMax = 64 << 20

type arguments struct {
	NodeNames []string
}

type filtered struct {
	NodeNames                  []string
	FailedNodes                map[string]string
	FailedAndUnresolvableNodes map[string]string
	Error                      string
}

type priority struct {
	Host  string
	Score int64
}

type call struct {
	PodName, PodNamespace, PodUID, Node string
}

type bound struct {
	Error string
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

type target struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

type binding struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Target     target   `json:"target"`
}

type cluster struct {
	url, token string
	client     *http.Client
}

func main() {
	folder := flag.String("certificates", "", "folder with tls.crt, tls.key and ca.crt")
	authority := flag.String("api-ca", "", "who signed the API server's certificate")
	url := flag.String("api", "", "where the API server is")
	token := flag.String("token", "", "file with the token to call it with")
	flag.Parse()
	secret, err := os.ReadFile(*token)
	check(err)
	api := &cluster{*url, string(secret), &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: pool(*authority)},
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 100,
		},
	}}
	http.HandleFunc("/filter", answer(func(asked arguments) any {
		return filtered{asked.NodeNames, map[string]string{}, map[string]string{}, ""}
	}))
	http.HandleFunc("/prioritize", answer(func(asked arguments) any {
		scores := make([]priority, len(asked.NodeNames))
		for at, name := range asked.NodeNames {
			scores[at] = priority{name, 0}
		}
		return scores
	}))
	http.HandleFunc("/bind", answer(func(asked call) any {
		if err := api.bind(asked); err != nil {
			return bound{err.Error()}
		}
		return bound{}
	}))
	leaf, err := tls.LoadX509KeyPair(*folder+"/tls.crt", *folder+"/tls.key")
	check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{leaf},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool(*folder + "/ca.crt"),
		MinVersion:   tls.VersionTLS13,
	}}
	log.Fatal(server.ServeTLS(listener, "", ""))
}

func answer[T any](act func(T) any) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		var asked T
		body, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, bodyBytesMax))
		if err == nil {
			err = json.Unmarshal(body, &asked)
		}
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		writer.Header().Set("Content-Type", "application/json")
		json.NewEncoder(writer).Encode(act(asked))
	}
}

func (api *cluster) bind(asked call) error {
	body, err := json.Marshal(binding{
		"v1", "Binding",
		metadata{asked.PodName, asked.PodNamespace, asked.PodUID},
		target{"Node", asked.Node},
	})
	if err != nil {
		return err
	}
	path := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding", api.url, asked.PodNamespace, asked.PodName)
	request, err := http.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+api.token)
	request.Header.Set("Content-Type", "application/json")
	reply, err := api.client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	words, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", reply.StatusCode, words)
	}
	return err
}

func pool(path string) *x509.CertPool {
	pem, err := os.ReadFile(path)
	check(err)
	found := x509.NewCertPool()
	if !found.AppendCertsFromPEM(pem) {
		log.Fatalf("no certificate: file=%s", path)
	}
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
