package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"sort"
	"strconv"
	"strings"
)

const (
	gpu      = "koordinator.sh/gpu"
	gpuCore  = "koordinator.sh/gpu-core"
	gpuRatio = "koordinator.sh/gpu-memory-ratio"
	gpuBytes = "koordinator.sh/gpu-memory"
	gpuShare = "koordinator.sh/gpu.shared"

	ours      = "tenure"
	admitted  = "tenure.sh/admitted"
	original  = "tenure.sh/original-request"
	ownDomain = "tenure.sh/"
	nvidia    = "NVIDIA_VISIBLE_DEVICES"
	cuda      = "CUDA_VISIBLE_DEVICES"
)

var names = []string{gpu, gpuCore, gpuRatio, gpuBytes, gpuShare}

var allocations = map[string]bool{
	"scheduling.koordinator.sh/device-allocated": true,
	"scheduling.koordinator.sh/resource-status":  true,
	"scheduling.koordinator.sh/bind-timestamp":   true,
}

type amounts map[string]int64

func asked(list map[string]string) (amounts, error) {
	found := amounts{}
	for _, name := range names {
		text, there := list[name]
		if !there {
			continue
		}
		number, err := whole(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found[name] = number
	}
	return found, nil
}

var suffixes = map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

func whole(text string) (int64, error) {
	if number, err := strconv.ParseInt(text, 10, 64); err == nil {
		return number, nil
	}
	for suffix, factor := range suffixes {
		if head, found := strings.CutSuffix(text, suffix); found {
			if number, ok := new(big.Rat).SetString(head); ok {
				number.Mul(number, new(big.Rat).SetInt64(factor))
				if number.IsInt() && number.Num().IsInt64() {
					return number.Num().Int64(), nil
				}
			}
		}
	}
	return 0, fmt.Errorf("not a whole quantity: %q", text)
}

func each(subject *pod, visit func(path, place string, one *container)) {
	for number := range subject.Spec.InitContainers {
		visit(fmt.Sprint("/spec/initContainers/", number), fmt.Sprint("init-", number), &subject.Spec.InitContainers[number])
	}
	for number := range subject.Spec.Containers {
		visit(fmt.Sprint("/spec/containers/", number), strconv.Itoa(number), &subject.Spec.Containers[number])
	}
}

func asksForCards(subject *pod) bool {
	found := false
	each(subject, func(_, _ string, one *container) {
		found = found || holds(one)
	})
	return found
}

const (
	qosClass      = "koordinator.sh/qosClass"
	priorityClass = "koordinator.sh/priority-class"
)

// What a QoS class implies where a Pod names no priority.
var classes = map[string]string{"LSE": "koord-prod", "LSR": "koord-prod", "LS": "koord-prod", "BE": "koord-batch"}

func mutate(asked *request, answer *response) {
	subject := &asked.Object
	if asked.Operation != "CREATE" || subject.Spec.NodeName != "" || !asksForCards(subject) {
		return
	}
	var patch []operation
	add := func(path string, value any) { patch = append(patch, operation{"add", path, value}) }
	legal := len(broken(subject)) == 0
	originals := map[string]map[string]map[string]string{}
	each(subject, func(path, place string, one *container) {
		if legal {
			rewrite(path, one, originals, &patch)
		}
		environment(path, place, one, holds(one), add)
	})
	if len(originals) > 0 {
		text, _ := json.Marshal(map[string]any{"containers": originals})
		annotate(subject, original, string(text), add)
	}
	annotate(subject, admitted, "true", add)
	class := classes[subject.Metadata.Labels[qosClass]]
	if class != "" && subject.Metadata.Labels[priorityClass] == "" && subject.Spec.Priority == 0 && subject.Spec.PriorityClassName == "" {
		add("/metadata/labels/"+escaped(priorityClass), class)
	}
	if subject.Spec.SchedulerName != ours {
		add("/spec/schedulerName", ours)
	}
	tolerate(subject, add)
	text, err := json.Marshal(patch)
	if err == nil && len(patch) > 0 {
		answer.Patch, answer.PatchType = text, "JSONPatch"
	}
}

func rewrite(path string, one *container, originals map[string]map[string]map[string]string, patch *[]operation) {
	before := map[string]string{}
	for _, list := range []map[string]string{one.Resources.Limits, one.Resources.Requests} {
		for _, name := range names {
			if text, there := list[name]; there {
				before[name] = text
			}
		}
	}
	if len(before) == 0 {
		return
	}
	numbers, _ := asked(before)
	after := map[string]string{}
	for name, text := range before {
		after[name] = text
	}
	if percent, there := numbers[gpu]; there {
		delete(after, gpu)
		after[gpuCore], after[gpuRatio] = before[gpu], before[gpu]
		numbers[gpuCore], numbers[gpuRatio] = percent, percent
	}
	if _, there := numbers[gpuShare]; !there {
		percent, ratio := numbers[gpuRatio]
		if !ratio {
			percent = numbers[gpuCore]
		}
		cards := int64(1)
		if percent > 100 && percent%100 == 0 {
			cards = percent / 100
		}
		after[gpuShare] = strconv.FormatInt(cards, 10)
	}
	changed := false
	for section, list := range map[string]map[string]string{"limits": one.Resources.Limits, "requests": one.Resources.Requests} {
		if list == nil {
			*patch = append(*patch, operation{"add", path + "/resources/" + section, after})
			changed = true
			continue
		}
		for name := range before {
			if _, there := list[name]; there && after[name] == "" {
				*patch = append(*patch, operation{"remove", path + "/resources/" + section + "/" + escaped(name), nil})
				changed = true
			}
		}
		for name, text := range after {
			if list[name] != text {
				*patch = append(*patch, operation{"add", path + "/resources/" + section + "/" + escaped(name), text})
				changed = true
			}
		}
	}
	if changed && !same(before, after) {
		part := map[string]map[string]string{}
		if devices := only(one.Resources.Requests); len(devices) > 0 {
			part["requests"] = devices
		}
		if devices := only(one.Resources.Limits); len(devices) > 0 {
			part["limits"] = devices
		}
		originals[one.Name] = part
	}
}

func holds(one *container) bool {
	for _, list := range []map[string]string{one.Resources.Requests, one.Resources.Limits} {
		for _, name := range names {
			if text, there := list[name]; there && text != "0" {
				return true
			}
		}
	}
	return false
}

func same(one, other map[string]string) bool {
	if len(one) != len(other) {
		return false
	}
	for name, text := range one {
		if other[name] != text {
			return false
		}
	}
	return true
}

func only(list map[string]string) map[string]string {
	found := map[string]string{}
	for _, name := range names {
		if text, there := list[name]; there {
			found[name] = text
		}
	}
	return found
}

func environment(path, place string, one *container, holds bool, add func(string, any)) {
	has := map[string]bool{}
	for _, entry := range one.Env {
		has[entry.Name] = true
	}
	var wanted []env
	if holds {
		wanted = []env{{Name: nvidia, ValueFrom: reference("visible", place)}, {Name: cuda, ValueFrom: reference("allocated", place)}}
	} else {
		wanted = []env{{Name: nvidia, Value: "void"}}
	}
	if one.Env == nil {
		add(path+"/env", wanted)
		return
	}
	for _, entry := range wanted {
		if !has[entry.Name] {
			add(path+"/env/-", entry)
		}
	}
}

func reference(key, place string) *valueFrom {
	field := fmt.Sprintf("metadata.annotations['%s%s.%s']", ownDomain, key, place)
	return &valueFrom{FieldRef: &fieldRef{APIVersion: "v1", FieldPath: field}}
}

func annotate(subject *pod, key, text string, add func(string, any)) {
	if subject.Metadata.Annotations == nil {
		subject.Metadata.Annotations = map[string]string{}
		add("/metadata/annotations", map[string]string{})
	}
	if subject.Metadata.Annotations[key] != text {
		add("/metadata/annotations/"+escaped(key), text)
	}
}

func tolerate(subject *pod, add func(string, any)) {
	wanted := toleration{Key: "tenure.sh/owned", Operator: "Exists"}
	for _, one := range subject.Spec.Tolerations {
		if one == wanted {
			return
		}
	}
	if subject.Spec.Tolerations == nil {
		add("/spec/tolerations", []toleration{wanted})
		return
	}
	add("/spec/tolerations/-", wanted)
}

func validate(asked *request, answer *response) {
	if asked.Operation != "CREATE" {
		return
	}
	subject := &asked.Object
	causes := append(forged(asked), broken(subject)...)
	if asksForCards(subject) {
		if subject.Spec.NodeName != "" {
			causes = append(causes, cause{"FieldValueForbidden", "the scheduler gives a node", "spec.nodeName"})
		}
		causes = append(causes, shown(subject)...)
		if fraction(subject) && subject.Metadata.Labels["koordinator.sh/gpu-isolation-provider"] == "" {
			answer.Warnings = []string{"nothing enforces this share of a card"}
		}
	}
	if len(causes) == 0 {
		return
	}
	texts := make([]string, len(causes))
	for number, one := range causes {
		texts[number] = one.Field + ": " + one.Message
	}
	answer.Allowed, answer.Warnings = false, nil
	answer.Status = &status{
		Status: "Failure", Reason: "Invalid", Code: 422,
		Message: fmt.Sprintf("Pod %q is invalid: %s", subject.Metadata.Name, strings.Join(texts, ", ")),
		Details: details{Name: subject.Metadata.Name, Kind: "Pod", Causes: causes},
	}
}

func forged(asked *request) []cause {
	if strings.HasPrefix(asked.UserInfo.Username, "system:serviceaccount:tenure-system:tenure-") {
		return nil
	}
	var found []cause
	for key := range asked.Object.Metadata.Annotations {
		if allocations[key] || strings.HasPrefix(key, ownDomain) && key != admitted && key != original {
			found = append(found, cause{"FieldValueForbidden", "only Tenure's service accounts may set it", "metadata.annotations[" + key + "]"})
		}
	}
	return found
}

func shown(subject *pod) []cause {
	var found []cause
	each(subject, func(path, place string, one *container) {
		for number, entry := range one.Env {
			if entry.Name != nvidia || entry.ValueFrom == nil && (entry.Value == "void" || entry.Value == "none") {
				continue
			}
			own := reference("visible", place).FieldRef.FieldPath
			if entry.ValueFrom == nil || entry.ValueFrom.FieldRef == nil || entry.ValueFrom.FieldRef.FieldPath != own {
				field := fmt.Sprintf("%s/env/%d", path, number)
				found = append(found, cause{"FieldValueInvalid", "the scheduler decides what a container sees", field})
			}
		}
	})
	return found
}

func fraction(subject *pod) bool {
	found := false
	each(subject, func(_, _ string, one *container) {
		numbers, err := asked(one.Resources.Requests)
		if err != nil || len(numbers) == 0 {
			return
		}
		cards := max(numbers[gpuShare], 1)
		found = found || numbers[gpuRatio] != 100*cards
	})
	return found
}

// broken returns every way the containers break the rules about amounts.
func broken(subject *pod) []cause {
	var found []cause
	each(subject, func(path, _ string, one *container) {
		say := func(reason, message, name string) {
			found = append(found, cause{reason, message, path + "/resources/requests/" + name})
		}
		requests, err := asked(one.Resources.Requests)
		if err == nil {
			var limits amounts
			limits, err = asked(one.Resources.Limits)
			for name, limit := range limits {
				if request, there := requests[name]; there && request != limit {
					say("FieldValueInvalid", "must be equal to its limit", name)
				}
				if _, there := requests[name]; !there {
					requests[name] = limit
				}
			}
		}
		if err != nil {
			say("FieldValueInvalid", err.Error(), "")
			return
		}
		checkAmounts(requests, say)
	})
	return found
}

func checkAmounts(numbers amounts, say func(reason, message, name string)) {
	if len(numbers) == 0 {
		return
	}
	for _, name := range []string{gpu, gpuShare} {
		if number, there := numbers[name]; there && number <= 0 {
			say("FieldValueInvalid", "must be more than 0", name)
			return
		}
	}
	cards := numbers[gpuShare]
	keys := make([]string, 0, len(numbers))
	for name := range numbers {
		keys = append(keys, strings.TrimPrefix(name, "koordinator.sh/"))
	}
	sort.Strings(keys)
	switch strings.Join(keys, " ") {
	case "gpu", "gpu-core gpu-memory", "gpu-core gpu-memory-ratio", "gpu-memory", "gpu-memory-ratio":
		for _, name := range []string{gpu, gpuCore, gpuRatio} {
			if percent, there := numbers[name]; there && percent > 100 && percent%100 != 0 {
				say("FieldValueInvalid", "a percentage above 100 is a multiple of it", name)
			}
		}
	case "gpu-core gpu-memory gpu.shared", "gpu-core gpu-memory-ratio gpu.shared", "gpu-memory gpu.shared", "gpu-memory-ratio gpu.shared":
		for _, name := range []string{gpuCore, gpuRatio} {
			if percent, there := numbers[name]; there && (percent%cards != 0 || percent/cards > 100) {
				say("FieldValueInvalid", "does not divide over the cards", name)
			}
		}
		if numbers[gpuBytes]%cards != 0 {
			say("FieldValueInvalid", "does not divide over the cards", gpuBytes)
		}
	default:
		say("FieldValueForbidden", "no combination that means anything", keys[0])
	}
}

func escaped(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}
