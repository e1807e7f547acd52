// The peer: a minimal admission webhook with net/http and encoding/json, as one would write it in
// Go for the Koordinator dialect alone. It reads only the fields that it needs, in one pass.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
)

const bodyBytesMax = 8 << 20

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID       string `json:"uid"`
	Operation string `json:"operation"`
	UserInfo  struct {
		Username string `json:"username"`
	} `json:"userInfo"`
	Object pod `json:"object"`
}

type response struct {
	UID       string   `json:"uid"`
	Allowed   bool     `json:"allowed"`
	Status    *status  `json:"status,omitempty"`
	PatchType string   `json:"patchType,omitempty"`
	Patch     []byte   `json:"patch,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

type status struct {
	Status  string  `json:"status"`
	Message string  `json:"message"`
	Reason  string  `json:"reason"`
	Code    int     `json:"code"`
	Details details `json:"details"`
}

type details struct {
	Name   string  `json:"name"`
	Kind   string  `json:"kind"`
	Causes []cause `json:"causes"`
}

type cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

type pod struct {
	Metadata struct {
		Name        string            `json:"name"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		SchedulerName     string       `json:"schedulerName"`
		NodeName          string       `json:"nodeName"`
		Priority          int          `json:"priority"`
		PriorityClassName string       `json:"priorityClassName"`
		InitContainers    []container  `json:"initContainers"`
		Containers        []container  `json:"containers"`
		Tolerations       []toleration `json:"tolerations"`
	} `json:"spec"`
}

type container struct {
	Name      string `json:"name"`
	Env       []env  `json:"env"`
	Resources struct {
		Requests map[string]string `json:"requests"`
		Limits   map[string]string `json:"limits"`
	} `json:"resources"`
}

type env struct {
	Name      string     `json:"name"`
	Value     string     `json:"value,omitempty"`
	ValueFrom *valueFrom `json:"valueFrom,omitempty"`
}

type valueFrom struct {
	FieldRef *fieldRef `json:"fieldRef,omitempty"`
}

type fieldRef struct {
	APIVersion string `json:"apiVersion"`
	FieldPath  string `json:"fieldPath"`
}

type toleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Effect   string `json:"effect,omitempty"`
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func serve(decide func(*request, *response)) http.HandlerFunc {
	return func(writer http.ResponseWriter, call *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(writer, call.Body, bodyBytesMax))
		if err != nil {
			http.Error(writer, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		var asked review
		if err := json.Unmarshal(body, &asked); err != nil || asked.Request == nil {
			http.Error(writer, fmt.Sprint("not an AdmissionReview: ", err), http.StatusBadRequest)
			return
		}
		answer := response{UID: asked.Request.UID, Allowed: true}
		decide(asked.Request, &answer)
		text, err := json.Marshal(review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: &answer})
		if err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		writer.Header().Set("Content-Type", "application/json")
		_, _ = writer.Write(text)
	}
}

func main() {
	certificate := flag.String("cert", "", "PEM file")
	key := flag.String("key", "", "PEM file")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /mutate", serve(mutate))
	http.HandleFunc("POST /validate", serve(validate))
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	// HTTP/1.1 on both sides of the comparison.
	settings := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
	}
	log.Fatal(http.Serve(tls.NewListener(listener, settings), nil))
}
