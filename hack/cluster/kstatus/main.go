// Reads a Kubernetes List in JSON from standard input and prints a JSON list of [status, message].
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func main() {
	var list unstructured.UnstructuredList
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		log.Fatal(err)
	}
	answers := [][2]string{}
	err := list.EachListItem(func(object runtime.Object) error {
		result, err := status.Compute(object.(*unstructured.Unstructured))
		if err != nil {
			return err
		}
		answers = append(answers, [2]string{result.Status.String(), result.Message})
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}
